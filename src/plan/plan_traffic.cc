#include "plan/plan_traffic.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <tuple>

namespace orthant {
namespace {

// Messages of a step by their kind, as the ranks one after the other say what they send.
class MessageTable {
 public:
  explicit MessageTable(size_t ranks) : ranks_(ranks) {}
  template <class Messages>
  void add(size_t rank, const Messages& messages, const char* when, int64_t times) {
    if (times == 0) return;
    for (const auto& m : messages)
      add(rank, m.what + ", " + when, m.collective, m.axis, m.calls * times, m.bytes * times);
  }
  void add(size_t rank, const std::string& what, const std::string& collective, const std::string& axis, int64_t calls,
           int64_t bytes) {
    const auto [place, is_new] = places_.try_emplace({what, collective, axis}, entries_.size());
    if (is_new) {
      const std::vector<int64_t> none(ranks_);
      entries_.push_back({what, collective, axis, none, none});
    }
    entries_[place->second].calls_per_rank[rank] += calls;
    entries_[place->second].bytes_per_rank[rank] += bytes;
  }
  std::vector<CommunicationEntry> take() { return std::move(entries_); }

 private:
  size_t ranks_;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> places_;
  std::vector<CommunicationEntry> entries_;
};

CommunicationEntry all_reduce_entry(const Plan& plan, std::string what, const std::vector<std::string>& axes) {
  return {.what = std::move(what),
          .collective = std::string(name_of(CollectiveKind::all_reduce)),
          .axis = plan.mesh.joined_name(axes),
          .calls_per_rank = {},
          .bytes_per_rank = {}};
}

// Numbers that all ranks of the axes add up, so many.
void add_sum(Plan& plan, const std::string& what, int64_t numbers, const std::vector<std::string>& axes) {
  if (plan.mesh.group_size(axes) == 1) return;
  auto entry = all_reduce_entry(plan, what, axes);
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    entry.calls_per_rank.push_back(1);
    entry.bytes_per_rank.push_back(reduction_bytes(plan.mesh, {{0, numbers}, {}, axes}, sizeof(double), rank));
  }
  plan.communication.push_back(std::move(entry));
}

// The two ranks that have a copy of a parameter tell each other their gradients.
void add_copies(Plan& plan) {
  for (const auto& [original, copy] : plan.copies()) {
    const int one = plan.owner_of(original), other = plan.owner_of(copy);
    if (one == other) continue;
    const auto ranks = static_cast<size_t>(plan.mesh.size());
    CommunicationEntry entry{.what = "gradients of " + plan.parameters[copy].name + ", a copy",
                             .collective = "exchange",
                             .axis = "pipeline",
                             .calls_per_rank = std::vector<int64_t>(ranks),
                             .bytes_per_rank = std::vector<int64_t>(ranks)};
    for (size_t rank = 0; rank < ranks; ++rank) {
      const int at = static_cast<int>(rank), here = plan.pipeline_rank(at);
      if (here != one && here != other) continue;
      const ParameterInfo held = plan.parameters_of(at)[here == one ? original : copy];
      entry.calls_per_rank[rank] = 1;
      entry.bytes_per_rank[rank] = held.held_size() * master_bytes(plan.config);
    }
    plan.communication.push_back(std::move(entry));
  }
}

}  // namespace

void add_activation_traffic(Plan& plan) {
  const int64_t forwards = plan.config.activation_checkpoint.mode == "full" ? 2 : 1;
  const auto ranks = static_cast<size_t>(plan.mesh.size());
  MessageTable table(ranks);
  // What a rank sends for a microbatch of so many sequences, by its place on the axes that matter.
  std::map<std::array<int64_t, 3>, SequenceTraffic> attention_known;
  std::map<std::array<int64_t, 4>, TensorTraffic> tensor_known;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int at = static_cast<int>(rank), u = plan.mesh.coord(at, "ulysses"), r = plan.mesh.coord(at, "ring");
    int64_t layers = 0;
    bool embeds = false, judges = false;
    for (const Stage& stage : plan.stages_on(at)) {
      layers += stage.layers.size();
      embeds |= stage.first, judges |= stage.last;
    }
    std::map<int64_t, int64_t> split;  // layers whose backward is, by the microbatch's sequences
    for (const Action& action : plan.row(at)) {
      if (action.kind != ActionKind::I) continue;
      split[plan.sequences_of(at, action.microbatch)] += plan.stages[static_cast<size_t>(action.stage)].layers.size();
    }
    for (const auto& [sequences, microbatches] : microbatch_sizes(plan.share(at))) {
      const auto [attention_at, attention_new] = attention_known.try_emplace({sequences, u, r});
      if (attention_new) attention_at->second = sequence_traffic(plan.sequence, attention_of(plan, sequences), u, r);
      const SequenceTraffic& attention = attention_at->second;
      table.add(rank, attention.forward, "forward", layers * forwards * microbatches);
      table.add(rank, attention.backward, "backward", layers * microbatches);
      const auto [tensor_at, tensor_new] = tensor_known.try_emplace(
          {sequences, plan.mesh.coord(at, kColumn), plan.mesh.coord(at, kRow), plan.num_places(at)});
      if (tensor_new) {
        tensor_at->second = tensor_traffic(plan.tensor, tensor_shape_of(plan, at, sequences), plan.mesh, at);
      }
      const TensorTraffic& tensor = tensor_at->second;
      table.add(rank, tensor.block_forward, "blocks forward", layers * forwards * microbatches);
      table.add(rank, tensor.block_backward, "blocks backward", layers * microbatches);
      table.add(rank, tensor.block_split, "blocks backward", split[sequences]);
      table.add(rank, tensor.embedding_forward, "vocabulary forward", embeds ? microbatches : 0);
      table.add(rank, tensor.loss_forward, "vocabulary forward", judges ? microbatches : 0);
      table.add(rank, tensor.loss_backward, "vocabulary backward", judges ? microbatches : 0);
      table.add(rank, tensor.embedding_backward, "vocabulary backward", embeds ? microbatches : 0);
    }
    for (const Action& action : plan.row(at)) {
      if (!is_message(action)) continue;
      const int64_t sequences = plan.sequences_of(at, action.microbatch);
      if (sequences == 0) continue;
      const bool leaves = facts(action.kind).lane == Lane::send;
      const bool forward = action.kind == ActionKind::SEND_F || action.kind == ActionKind::RECV_F;
      table.add(rank, forward ? "outputs of stages" : "gradients of stages' inputs",
                leaves ? "send" : "recv", "pipeline", 1, leaves ? plan.stream_bytes(at, sequences) : 0);
    }
  }
  for (auto& entry : table.take()) plan.communication.push_back(std::move(entry));
}

void add_gradient_traffic(Plan& plan) {
  std::map<int, std::vector<GradientBucket>> held;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    if (plan.first_like(rank) == rank) held.emplace(rank, plan.buckets_of(rank));
  }
  for (size_t i = plan.buckets.size(); i-- > 0;) {
    const auto& axes = plan.buckets[i].axes;
    if (plan.mesh.group_size(axes) == 1) continue;
    auto entry = all_reduce_entry(plan, fmt::format("gradients, bucket {} of {}", i + 1, plan.buckets.size()), axes);
    for (int rank = 0; rank < plan.mesh.size(); ++rank) {
      const GradientBucket& bucket = held.at(plan.first_like(rank))[i];
      const bool here = bucket.elements.size() > 0;
      entry.calls_per_rank.push_back(here ? 1 : 0);
      entry.bytes_per_rank.push_back(here ? reduction_bytes(plan.mesh, bucket, master_bytes(plan.config), rank) : 0);
    }
    plan.communication.push_back(std::move(entry));
  }
  add_copies(plan);
  add_sum(plan, "loss, signals and peaks", StepSignals::elements(plan.mesh.size()), all_axes(plan.mesh));
  for (const NormSlots& slots : norm_slots(plan)) {
    const auto count = static_cast<int64_t>(slots.parameters.size());
    add_sum(plan, fmt::format("gradient norm, by parameter, {} of them", count), count, slots.axes);
  }
}

}  // namespace orthant

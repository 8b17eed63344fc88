// Adds up the messages of every rank from the traffic plans of attention, tensor parallelism, vocabulary layers and
// gradients.
#include "plan/plan_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "config/from_config.h"
#include "parallel/tensor/slice_traffic_plan.h"
#include "parallel/vocabulary/layers_plan.h"
#include "plan/vocabulary.h"

namespace orthant {
namespace {

using Entries = std::vector<CommunicationEntry>;

// Collects the messages of a step by kind. Each rank in turn adds what it sends.
class MessageTable {
 public:
  explicit MessageTable(size_t ranks) : ranks_(ranks) {}
  void add(size_t rank, const std::vector<Messages>& messages, const std::string& when, int64_t times) {
    if (times == 0) return;
    for (const Messages& m : messages)
      add(rank, when.empty() ? m.what : m.what + ", " + when, m.collective, m.axis, m.calls * times, m.bytes * times);
  }
  void add(size_t rank, const std::string& what, const std::string& collective, const std::string& axis, int64_t calls,
           int64_t bytes, CommunicationKind kind = CommunicationKind::other) {
    const auto [place, is_new] = positions_.try_emplace({what, collective, axis}, entries_.size());
    if (is_new) {
      const std::vector<int64_t> none(ranks_);
      entries_.push_back({what, kind, collective, axis, none, none});
    }
    entries_[place->second].calls_per_rank[rank] += calls;
    entries_[place->second].bytes_per_rank[rank] += bytes;
  }
  std::vector<CommunicationEntry> take() { return std::move(entries_); }

 private:
  size_t ranks_;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> positions_;
  std::vector<CommunicationEntry> entries_;
};

// Adds the messages that the tensor mesh of one pipeline rank sends for its vocabulary rows.
void add_slice_traffic(MessageTable& table, const ParameterPlacement& plan, int rank, int64_t sequences,
                       int64_t microbatches) {
  if (plan.tensor.rows * plan.tensor.columns == 1) return;
  const OutputLoss loss = make_output_loss(plan.config);
  const TensorSlice slice{.rows = plan.vocabulary_rows(rank).size(),
                          .early = sums_input_gradient_early(plan),
                          .statistics = loss.statistics(),
                          .rounds = algorithm_of(plan)->rounds(),
                          .smooths = loss.smoothing > 0};
  const TensorSliceTraffic traffic =
      slice_traffic(plan.tensor, tensor_shape_of(plan, rank, sequences), slice, plan.mesh, rank);
  const auto at = static_cast<size_t>(rank);
  table.add(at, traffic.embedding, "embedding", microbatches);
  table.add(at, traffic.head, "output layer", microbatches);
  const bool has_norm = plan.stages.back().owner == plan.pipeline_rank(rank);
  table.add(at, traffic.norm, "last norm", has_norm ? microbatches : 0);
}

// Adds the messages of the sharded output layer (its input, softmax statistics and its input's gradient) and of the
// sharded embedding, for all microbatches.
void add_vocabulary_traffic(MessageTable& table, const ParameterPlacement& plan, int rank) {
  if (plan.vocabulary.empty()) return;
  const int element = dtype_bytes(plan.config.training.dtype), here = plan.pipeline_rank(rank);
  VocabularyShape shape{.element_bytes = element,
                        .statistic_bytes = std::max(element, 4),
                        .ranks = plan.mesh.axis_size(kPipeline)};
  const auto at = static_cast<size_t>(rank);
  for (const auto& [sequences, microbatches] : microbatch_sizes(plan.data_shard(rank))) {
    if (sequences == 0) continue;
    shape.tokens = sequences * plan.num_token_positions(rank);
    shape.stream = volume(plan.stream_shape(rank, sequences));
    shape.root = plan.stages.back().owner;
    const auto& algorithm = vocabulary_algorithm(plan.vocabulary);
    table.add(at, output_traffic(algorithm, make_output_loss(plan.config), shape, here), "", microbatches);
    shape.root = plan.stages.front().owner;
    table.add(at, input_traffic(shape, here), "", microbatches);
    add_slice_traffic(table, plan, rank, sequences, microbatches);
  }
}

CommunicationEntry collective_entry(const ParameterPlacement& plan, std::string what, CollectiveKind collective,
                                    const std::vector<std::string>& axes,
                                    CommunicationKind kind = CommunicationKind::other) {
  return {.what = std::move(what),
          .kind = kind,
          .collective = std::string(name_of(collective)),
          .axis = plan.mesh.joined_name(axes),
          .calls_per_rank = {},
          .bytes_per_rank = {}};
}

// Adds the messages of post-validation: `numbers` float64 values go from rank to rank to the last pipeline rank, and
// the final values go back.
void add_chain(Entries& entries, const ParameterPlacement& plan, const std::string& what, int64_t numbers) {
  const auto ranks = static_cast<size_t>(plan.mesh.size());
  MessageTable table(ranks);
  const int64_t bytes = numbers * static_cast<int64_t>(sizeof(double));
  const auto add = [&](size_t rank, const char* way, bool sends, bool receives) {
    if (sends) table.add(rank, what + way, "send", kPipeline, 1, bytes);
    if (receives) table.add(rank, what + way, "recv", kPipeline, 1, 0);
  };
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int at = plan.pipeline_rank(static_cast<int>(rank));
    const bool first = at == 0, last = at + 1 == plan.mesh.axis_size(kPipeline);
    add(rank, " so far, to the next rank", !last, !first);
    add(rank, ", to the rank before", !first, !last);
  }
  for (auto& entry : table.take()) entries.push_back(std::move(entry));
}

// Adds an all-reduce of `numbers` float64 values over the axes.
void add_sum(Entries& entries, const ParameterPlacement& plan, const std::string& what, int64_t numbers,
             const std::vector<std::string>& axes) {
  if (plan.mesh.group_size(axes) == 1) return;
  auto entry = collective_entry(plan, what, CollectiveKind::all_reduce, axes);
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    entry.calls_per_rank.push_back(1);
    entry.bytes_per_rank.push_back(reduction_bytes(plan.mesh, {{0, numbers}, {}, axes}, sizeof(double), rank));
  }
  entries.push_back(std::move(entry));
}

// Counts of a rank's row, by the number of sequences of the microbatch. Empty microbatches are left out.
struct RowTraffic {
  std::map<int64_t, int64_t> split_layers;                        // layers whose backward is split into I and W
  std::array<std::map<int64_t, int64_t>, kActionKinds> messages;  // number of messages, by kind of Action
};
RowTraffic row_traffic(const ParameterPlacement& plan, int rank) {
  const auto& microbatches = plan.data_shard(rank).microbatches;
  RowTraffic traffic;
  for (const Action& action : plan.row(rank)) {
    const bool splits = action.kind == ActionKind::I;
    if (!splits && !is_message(action)) continue;
    const int64_t sequences = microbatches[static_cast<size_t>(action.microbatch)].size();
    if (sequences == 0) continue;
    if (splits) {
      traffic.split_layers[sequences] += plan.stages[static_cast<size_t>(action.stage)].layers.size();
    } else {
      ++traffic.messages[static_cast<size_t>(action.kind)][sequences];
    }
  }
  return traffic;
}

// Adds the gradients that the two ranks with copies of one parameter exchange.
void add_tied_gradients(Entries& entries, const ParameterPlacement& plan) {
  for (const auto& [original, copy] : plan.tied_pairs()) {
    const int one = plan.owner_of(original), other = plan.owner_of(copy);
    if (one == other) continue;
    const auto ranks = static_cast<size_t>(plan.mesh.size());
    CommunicationEntry entry{.what = "gradients of " + plan.parameters[copy].name + ", a copy",
                             .collective = "exchange",
                             .axis = kPipeline,
                             .calls_per_rank = std::vector<int64_t>(ranks),
                             .bytes_per_rank = std::vector<int64_t>(ranks)};
    for (size_t rank = 0; rank < ranks; ++rank) {
      const int at = static_cast<int>(rank), here = plan.pipeline_rank(at);
      if (here != one && here != other) continue;
      const size_t held = here == one ? original : copy;
      entry.calls_per_rank[rank] = 1;
      entry.bytes_per_rank[rank] = plan.owned_parts(at)[held].size() * master_bytes(plan.config);
    }
    entries.push_back(std::move(entry));
  }
}

// Adds the messages of all microbatches: of blocks, embedding and loss, and between stages.
void add_activation_traffic(Entries& entries, const ParameterPlacement& plan) {
  const Recomputation recompute = make_recomputation(plan.config);
  const bool repeats_attention = recompute.repeats_attention(block_operations(plan.architecture));
  const auto ranks = static_cast<size_t>(plan.mesh.size());
  MessageTable table(ranks);
  // Traffic of one microbatch, computed once for each number of sequences and position on the axes that matter.
  std::map<std::array<int64_t, 3>, SequenceTraffic> attention_known;
  std::map<std::array<int64_t, 4>, TensorTraffic> tensor_known;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int at = static_cast<int>(rank), u = plan.mesh.coord(at, kUlysses), r = plan.mesh.coord(at, kRing);
    int64_t layers = 0, recomputing = 0;
    bool embeds = false, has_head = false;
    for (const Stage& stage : plan.stages_on(at)) {
      layers += stage.layers.size();
      recomputing += recompute.num_layers(stage.layers.begin, stage.layers.end);
      embeds |= stage.first, has_head |= stage.last;
    }
    const RowTraffic row = row_traffic(plan, at);
    for (const auto& [sequences, microbatches] : microbatch_sizes(plan.data_shard(at))) {
      const auto [attention_at, attention_new] = attention_known.try_emplace({sequences, u, r});
      if (attention_new) attention_at->second = sequence_traffic(plan.sequence, attention_of(plan, sequences), u, r);
      const SequenceTraffic& attention = attention_at->second;
      const int64_t attentions = layers + (repeats_attention ? recomputing : 0);
      table.add(rank, attention.forward, "forward", attentions * microbatches);
      table.add(rank, attention.backward, "backward", layers * microbatches);
      const auto [tensor_at, tensor_new] = tensor_known.try_emplace(
          {sequences, plan.mesh.coord(at, kColumn), plan.mesh.coord(at, kRow), plan.num_token_positions(at)});
      if (tensor_new) {
        tensor_at->second = tensor_traffic(plan.tensor, tensor_shape_of(plan, at, sequences), plan.mesh, at);
      }
      const TensorTraffic& tensor = tensor_at->second;
      table.add(rank, tensor.block_forward, "blocks forward", layers * microbatches);
      table.add(rank, tensor.block_repeated, "blocks recomputed", recomputing * microbatches);
      table.add(rank, tensor.block_backward, "blocks backward", layers * microbatches);
      const auto split = row.split_layers.find(sequences);
      table.add(rank, tensor.block_split, "blocks backward", split == row.split_layers.end() ? 0 : split->second);
      if (!plan.vocabulary.empty()) continue;
      table.add(rank, tensor.embedding_forward, "vocabulary forward", embeds ? microbatches : 0);
      table.add(rank, tensor.loss_forward, "vocabulary forward", has_head ? microbatches : 0);
      table.add(rank, tensor.loss_backward, "vocabulary backward", has_head ? microbatches : 0);
      table.add(rank, tensor.embedding_backward, "vocabulary backward", embeds ? microbatches : 0);
    }
    add_vocabulary_traffic(table, plan, at);
    for (const ActionKind kind : {ActionKind::SEND_F, ActionKind::RECV_F, ActionKind::SEND_B, ActionKind::RECV_B}) {
      const auto& messages = row.messages[static_cast<size_t>(kind)];
      if (messages.empty()) continue;
      const bool leaves = facts(kind).stream == Stream::send;
      const bool forward = kind == ActionKind::SEND_F || kind == ActionKind::RECV_F;
      int64_t calls = 0, bytes = 0;
      for (const auto& [sequences, count] : messages) {
        calls += count;
        bytes += leaves ? count * plan.stream_bytes(at, sequences) : 0;
      }
      using enum CommunicationKind;
      table.add(rank, forward ? "outputs of stages" : "gradients of stages' inputs", leaves ? "send" : "recv",
                kPipeline, calls, bytes, forward ? stage_outputs : stage_gradients);
    }
  }
  for (auto& entry : table.take()) entries.push_back(std::move(entry));
}

// How often the row of each pipeline rank reduces and gathers each bucket. Weights that no row gathers are gathered
// once, after the update.
struct BucketCalls {
  explicit BucketCalls(const ParameterPlacement& plan)
      : reductions(plan.schedule.rows.size(), std::vector<int64_t>(plan.buckets.size())), gathers(reductions) {
    const std::vector<std::vector<int>> by_stage = plan.buckets_by_stage();
    for (size_t rank = 0; rank < reductions.size(); ++rank) {
      for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
        gathers[rank][bucket] = plan.shards_weights() && plan.belongs_to_unit(bucket) ? 0 : 1;
      }
      for (const auto& [kind, stage, number] : plan.schedule.rows[rank]) {
        const auto& own = by_stage[static_cast<size_t>(stage)];
        if (kind == ActionKind::REDUCE) ++reductions[rank][static_cast<size_t>(own[static_cast<size_t>(number)])];
        for (size_t i = 0; i < own.size() && kind == ActionKind::UNSHARD; ++i) {
          const auto bucket = static_cast<size_t>(own[i]);
          gathers[rank][bucket] += plan.belongs_to_unit(bucket) ? 1 : 0;
        }
      }
    }
  }
  std::vector<std::vector<int64_t>> reductions, gathers;  // by pipeline rank, by bucket
};

// Adds the sum of a bucket's sharded gradients over the copies of sharded states, once a step.
void add_sum_over_copies(Entries& entries, const ParameterPlacement& plan, const ParameterShards& held,
                         size_t bucket) {
  const Axes axes = plan.copy_axes();
  if (axes.empty()) return;
  const std::string name = fmt::format("gradients over copies, bucket {} of {}", bucket + 1, plan.buckets.size());
  auto entry = collective_entry(plan, name, CollectiveKind::all_reduce, axes, CommunicationKind::gradients_of_copies);
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const GradientBucket& of_rank = held.of(rank).buckets[bucket];
    const Range chunk = of_rank.chunk(plan.mesh.group_index(rank, of_rank.axes));
    entry.calls_per_rank.push_back(of_rank.elements.size() > 0 ? 1 : 0);
    entry.bytes_per_rank.push_back(
        reduction_bytes(plan.mesh, {{0, chunk.size()}, {}, axes}, master_bytes(plan.config), rank));
  }
  entries.push_back(std::move(entry));
}

// Adds the exchanges of matrices in updates of Muon.
void add_matrix_updates(Entries& entries, const ParameterPlacement& plan, const MatrixCostsByRank& updates) {
  if (plan.matrix_axes.empty()) return;
  auto entry = collective_entry(plan, "matrices updated by Muon", CollectiveKind::all_to_all, plan.matrix_axes);
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    entry.calls_per_rank.push_back(updates.of(rank).calls);
    entry.bytes_per_rank.push_back(updates.of(rank).bytes);
  }
  entries.push_back(std::move(entry));
}

// Adds the messages that reduce gradients, their norm and the step signals.
void add_gradient_traffic(Entries& entries, const ParameterPlacement& plan, const ParameterShards& held) {
  const BucketCalls calls(plan);
  for (size_t i = plan.buckets.size(); i-- > 0;) {
    const auto& axes = plan.buckets[i].axes;
    const auto add = [&](CommunicationKind kind, CollectiveKind collective, const auto& bytes_sent, int element,
                         const std::vector<std::vector<int64_t>>& times) {
      if (plan.mesh.group_size(axes) == 1) return;
      const char* what = kind == CommunicationKind::gradients ? "gradients" : "weights";
      const std::string name = fmt::format("{}, bucket {} of {}", what, i + 1, plan.buckets.size());
      auto entry = collective_entry(plan, name, collective, axes, kind);
      for (int rank = 0; rank < plan.mesh.size(); ++rank) {
        const GradientBucket& bucket = held.of(rank).buckets[i];
        const int64_t count =
            bucket.elements.size() > 0 ? times[static_cast<size_t>(plan.pipeline_rank(rank))][i] : 0;
        entry.calls_per_rank.push_back(count);
        entry.bytes_per_rank.push_back(count > 0 ? count * bytes_sent(plan.mesh, bucket, element, rank) : 0);
      }
      entries.push_back(std::move(entry));
    };
    const int master = master_bytes(plan.config), element = dtype_bytes(plan.config.training.dtype);
    if (plan.shards_optimizer()) {
      add(CommunicationKind::gradients, CollectiveKind::reduce_scatter, reduce_scatter_bytes, master, calls.reductions);
      add(CommunicationKind::weights, CollectiveKind::all_gather, all_gather_bytes, element, calls.gathers);
      add_sum_over_copies(entries, plan, held, i);
    } else {
      add(CommunicationKind::gradients, CollectiveKind::all_reduce, reduction_bytes, master, calls.reductions);
    }
  }
  add_tied_gradients(entries, plan);
  const int64_t numbers = StepSignals::elements(plan.mesh.size());
  std::vector<std::string> axes = all_axes(plan.mesh);
  if (plan.post_validates()) std::erase(axes, kPipeline);
  add_sum(entries, plan, "loss, gradient norm, signals and peaks", numbers, axes);
  if (plan.post_validates()) add_chain(entries, plan, "loss, gradient norm, signals and peaks", numbers);
}

}  // namespace

std::vector<CommunicationEntry> count_communication(const ParameterPlacement& plan, const ParameterShards& held,
                                                    const MatrixCostsByRank& updates) {
  Entries entries;
  add_activation_traffic(entries, plan);
  add_gradient_traffic(entries, plan, held);
  add_matrix_updates(entries, plan, updates);
  return entries;
}

}  // namespace orthant

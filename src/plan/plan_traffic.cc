// Adds up the messages of ranks from the traffic plans of attention, tensor parallelism, vocabulary layers and
// gradients.
#include "plan/plan_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "config/from_config.h"

namespace orthant {
namespace {

// The messages of a step by kind, for each class of ranks.
class CommunicationTable {
 public:
  explicit CommunicationTable(size_t classes) : classes_(classes) {}

  // Adds the messages of one class.
  void add(size_t at, const std::vector<Messages>& messages, const std::string& when, int64_t times) {
    if (times == 0) return;
    for (const Messages& m : messages) {
      CommunicationEntry& entry = this->entry(
          {.what = when.empty() ? m.what : m.what + ", " + when, .collective = m.collective, .axis = m.axis});
      entry.calls[at] += m.calls * times;
      add_bytes(entry, at, times * m.bytes);
    }
  }
  static void add_bytes(CommunicationEntry& entry, size_t at, const Moved& bytes) {
    entry.bytes[at] += bytes.sent;
    entry.received[at] += bytes.received;
  }
  // The entry with these names. A new entry has the kind and the buckets of `like`, and sends nothing.
  CommunicationEntry& entry(const CommunicationEntry& like) {
    const auto [position, is_new] = positions_.try_emplace({like.what, like.collective, like.axis}, entries_.size());
    if (is_new) {
      entries_.push_back(like);
      entries_.back().calls.resize(classes_);
      entries_.back().bytes.resize(classes_);
      entries_.back().received.resize(classes_);
    }
    return entries_[position->second];
  }
  // Lets a class send what another class sends so far.
  void copy(size_t from, size_t to) {
    for (CommunicationEntry& entry : entries_) {
      for (auto* values : {&entry.calls, &entry.bytes, &entry.received}) (*values)[to] = (*values)[from];
    }
  }
  std::vector<CommunicationEntry> take() { return std::move(entries_); }

 private:
  size_t classes_;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> positions_;
  std::vector<CommunicationEntry> entries_;
};

CommunicationEntry collective_entry(const ParameterPlacement& plan, std::string what, CollectiveKind collective,
                                    const Axes& axes, CommunicationKind kind = CommunicationKind::other) {
  return {.what = std::move(what),
          .kind = kind,
          .collective = std::string(name_of(collective)),
          .axis = plan.mesh.joined_name(axes)};
}

// Counts of a rank's row, by the number of sequences of the microbatch. Empty microbatches are left out.
struct RowTraffic {
  std::map<int64_t, int64_t> split_layers;                        // layers whose backward is split into I and W
  std::array<std::map<int64_t, int64_t>, kActionKinds> messages;  // number of messages, by kind of Action
};
RowTraffic row_traffic(const ParameterPlacement& plan, const RankValues& rank) {
  RowTraffic traffic;
  for (const Action& action : plan.schedule.rows[static_cast<size_t>(rank.pipeline_rank)]) {
    const bool splits = action.kind == ActionKind::I;
    if (!splits && !is_message(action)) continue;
    const int64_t sequences = rank.data_shard.microbatches[static_cast<size_t>(action.microbatch)].size();
    if (sequences == 0) continue;
    if (splits) {
      traffic.split_layers[sequences] += plan.stages[static_cast<size_t>(action.stage)].layers.size();
    } else {
      ++traffic.messages[static_cast<size_t>(action.kind)][sequences];
    }
  }
  return traffic;
}

// Adds the messages of all microbatches of a class: of blocks, embedding and loss, and between stages.
void add_activation_traffic(CommunicationTable& table, size_t at, const ParameterPlacement& plan,
                            const RankValues& rank) {
  const Recomputation recompute = make_recomputation(plan.config);
  const bool repeats_attention = recompute.repeats_attention(block_operations(plan.architecture));
  int64_t layers = 0, recomputing = 0;
  bool embeds = false, has_head = false;
  for (const Stage& stage : plan.stages) {
    if (stage.owner != rank.pipeline_rank) continue;
    layers += stage.layers.size();
    recomputing += recompute.num_layers(stage.layers.begin, stage.layers.end);
    embeds |= stage.first, has_head |= stage.last;
  }
  const RowTraffic row = row_traffic(plan, rank);
  const std::map<int64_t, int64_t> sizes = microbatch_sizes(rank.data_shard);
  for (const auto& [sequences, microbatches] : sizes) {
    const SequenceTraffic& attention = rank.microbatches->at(sequences).attention;
    const TensorTraffic& tensor = rank.microbatches->at(sequences).tensor;
    const int64_t attentions = layers + (repeats_attention ? recomputing : 0);
    table.add(at, attention.forward, "forward", attentions * microbatches);
    table.add(at, attention.backward, "backward", layers * microbatches);
    table.add(at, tensor.block_forward, "blocks forward", layers * microbatches);
    table.add(at, tensor.block_repeated, "blocks recomputed", recomputing * microbatches);
    table.add(at, tensor.block_backward, "blocks backward", layers * microbatches);
    const auto split = row.split_layers.find(sequences);
    table.add(at, tensor.block_split, "blocks backward", split == row.split_layers.end() ? 0 : split->second);
    if (!plan.vocabulary.empty()) continue;
    table.add(at, tensor.embedding_forward, "vocabulary forward", embeds ? microbatches : 0);
    table.add(at, tensor.loss_forward, "vocabulary forward", has_head ? microbatches : 0);
    table.add(at, tensor.loss_backward, "vocabulary backward", has_head ? microbatches : 0);
    table.add(at, tensor.embedding_backward, "vocabulary backward", embeds ? microbatches : 0);
  }
  for (const auto& [sequences, microbatches] : sizes) {
    const MicrobatchCosts& costs = rank.microbatches->at(sequences);
    table.add(at, costs.vocabulary, "", microbatches);
    table.add(at, costs.slice.embedding, "embedding", microbatches);
    table.add(at, costs.slice.head, "output layer", microbatches);
    table.add(at, costs.slice.norm, "last norm", has_head ? microbatches : 0);
  }
  for (const ActionKind kind : {ActionKind::SEND_F, ActionKind::RECV_F, ActionKind::SEND_B, ActionKind::RECV_B}) {
    const auto& messages = row.messages[static_cast<size_t>(kind)];
    if (messages.empty()) continue;
    const bool leaves = facts(kind).stream == Stream::send;
    const bool forward = kind == ActionKind::SEND_F || kind == ActionKind::RECV_F;
    using enum CommunicationKind;
    CommunicationEntry& entry = table.entry({.what = forward ? "outputs of stages" : "gradients of stages' inputs",
                                             .kind = forward ? stage_outputs : stage_gradients,
                                             .collective = leaves ? "send" : "recv",
                                             .axis = kPipeline});
    for (const auto& [sequences, count] : messages) {
      entry.calls[at] += count;
      (leaves ? entry.bytes : entry.received)[at] += count * rank.microbatches->at(sequences).stream_bytes;
    }
  }
}

// Adds the activation traffic of all classes. Classes with the same microbatches send the same.
void add_activation_traffic(CommunicationTable& table, const ParameterPlacement& plan,
                            const std::vector<RankValues>& ranks) {
  std::map<std::tuple<int, int64_t, const MicrobatchCostsBySize*>, size_t> known;
  for (size_t at = 0; at < ranks.size(); ++at) {
    const RankValues& rank = ranks[at];
    const auto [found, is_new] =
        known.try_emplace({rank.pipeline_rank, rank.data_shard.sequences.size(), rank.microbatches.get()}, at);
    if (is_new) {
      add_activation_traffic(table, at, plan, rank);
    } else {
      table.copy(found->second, at);
    }
  }
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

// Adds the messages that reduce and gather a bucket, and sum its sharded gradients over the copies of sharded states.
void add_bucket(CommunicationTable& table, const ParameterPlacement& plan, const std::vector<RankValues>& ranks,
                const BucketCalls& calls, size_t bucket) {
  using enum CommunicationKind;
  const Axes& axes = plan.buckets[bucket].axes;
  const auto add = [&](CommunicationEntry like, Moved BucketCosts::* bytes, const auto& calls_of) {
    CommunicationEntry& entry = table.entry(like);
    ++entry.buckets;
    for (size_t at = 0; at < ranks.size(); ++at) {
      const bool holds = ranks[at].held->buckets[bucket].elements.size() > 0;
      const int64_t count = holds ? calls_of(static_cast<size_t>(ranks[at].pipeline_rank)) : 0;
      entry.calls[at] += count;
      CommunicationTable::add_bytes(entry, at, count * ranks[at].owned->buckets[bucket].*bytes);
    }
  };
  if (plan.mesh.group_size(axes) > 1) {
    const auto kind = plan.shards_optimizer() ? CollectiveKind::reduce_scatter : CollectiveKind::all_reduce;
    add(collective_entry(plan, "gradients", kind, axes, gradients), &BucketCosts::reduction_bytes,
        [&](size_t at) { return calls.reductions[at][bucket]; });
    if (plan.shards_optimizer()) {
      add(collective_entry(plan, "weights", CollectiveKind::all_gather, axes, weights), &BucketCosts::gather_bytes,
          [&](size_t at) { return calls.gathers[at][bucket]; });
    }
  }
  if (plan.shards_optimizer() && !plan.copy_axes().empty()) {
    add(collective_entry(plan, "gradients over copies", CollectiveKind::all_reduce, plan.copy_axes(),
                         gradients_of_copies),
        &BucketCosts::copies_bytes, [](size_t) { return int64_t{1}; });
  }
}

// Adds the gradients that the two ranks with copies of one parameter exchange.
void add_tied_gradients(CommunicationTable& table, const ParameterPlacement& plan,
                        const std::vector<RankValues>& ranks) {
  const auto pairs = plan.tied_pairs();
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    const auto& [original, copy] = pairs[pair];
    const int one = plan.owner_of(original), other = plan.owner_of(copy);
    if (one == other) continue;
    CommunicationEntry& entry = table.entry({.what = "gradients of " + plan.parameters[copy].name + ", a copy",
                                             .collective = "exchange",
                                             .axis = kPipeline});
    for (size_t at = 0; at < ranks.size(); ++at) {
      if (ranks[at].pipeline_rank != one && ranks[at].pipeline_rank != other) continue;
      entry.calls[at] = 1;
      entry.bytes[at] = entry.received[at] = ranks[at].owned->tied[pair] * master_bytes(plan.config);
    }
  }
}

// Adds the sum of the step's statistics. With post-validation they go from rank to rank to the last pipeline rank, and
// the final values go back.
void add_statistics(CommunicationTable& table, const ParameterPlacement& plan, const std::vector<RankValues>& ranks) {
  const std::string what = "loss, gradient norm, signals and peak memory";
  const Axes axes = statistics_axes(plan);
  if (const int group_size = plan.mesh.group_size(axes); group_size > 1) {
    CommunicationEntry& entry = table.entry(collective_entry(plan, what, small_sum(group_size), axes));
    for (size_t at = 0; at < ranks.size(); ++at) {
      entry.calls[at] = 1;
      entry.bytes[at] = ranks[at].statistics.sent;
      entry.received[at] = ranks[at].statistics.received;
    }
  }
  if (!plan.post_validates()) return;
  const int64_t bytes = StepSignals::kBytes;
  for (size_t at = 0; at < ranks.size(); ++at) {
    const bool first = ranks[at].pipeline_rank == 0;
    const bool last = ranks[at].pipeline_rank + 1 == plan.mesh.axis_size(kPipeline);
    const auto add = [&](const char* way, bool sends, bool receives) {
      if (sends) table.add(at, {{what + way, "send", kPipeline, 1, {.sent = bytes}}}, "", 1);
      if (receives) table.add(at, {{what + way, "recv", kPipeline, 1, {.received = bytes}}}, "", 1);
    };
    add(" so far, to the next rank", !last, !first);
    add(", to the rank before", !first, !last);
  }
}

// Adds the exchanges of matrices in updates of Muon.
void add_matrix_updates(CommunicationTable& table, const ParameterPlacement& plan,
                        const std::vector<RankValues>& ranks) {
  if (plan.matrix_axes.empty()) return;
  CommunicationEntry& entry =
      table.entry(collective_entry(plan, "matrices updated by Muon", CollectiveKind::all_to_all, plan.matrix_axes));
  for (size_t at = 0; at < ranks.size(); ++at) {
    entry.calls[at] = ranks[at].matrices->calls;
    entry.bytes[at] = entry.received[at] = ranks[at].matrices->bytes;
  }
}

}  // namespace

std::vector<CommunicationEntry> count_communication(const ParameterPlacement& plan,
                                                    const std::vector<RankValues>& ranks) {
  CommunicationTable table(ranks.size());
  add_activation_traffic(table, plan, ranks);
  const BucketCalls calls(plan);
  for (size_t bucket = plan.buckets.size(); bucket-- > 0;) add_bucket(table, plan, ranks, calls, bucket);
  add_tied_gradients(table, plan, ranks);
  add_statistics(table, plan, ranks);
  add_matrix_updates(table, plan, ranks);
  return table.take();
}

}  // namespace orthant

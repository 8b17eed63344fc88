// Counts the memory of a rank: parameters, gradients and optimizer state by elements, and activations by following its
// row of the schedule. Ranks with equal rows share the result.
#include "plan/plan_memory.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "config/from_config.h"
#include "plan/microbatch_memory.h"

namespace orthant {
namespace {

// Returns, by stage, the microbatch whose backward is the last in the row. It completes the stage's gradients.
std::vector<int> completing(const std::vector<Action>& row, const DataShard& data_shard, size_t stages) {
  std::vector<int> last(stages, -1);
  for (const auto& [kind, stage, microbatch] : row) {
    if (kind != ActionKind::B && kind != ActionKind::W) continue;
    if (data_shard.microbatches[static_cast<size_t>(microbatch)].size() > 0)
      last[static_cast<size_t>(stage)] = microbatch;
  }
  return last;
}

// Facts of the plan that the rows of all ranks share.
struct SharedFacts {
  explicit SharedFacts(const ParameterPlacement& plan)
      : rows(plan.schedule), units(plan.units()), buckets_by_stage(plan.buckets_by_stage()) {
    const FlatLayout flat = flat_layout(plan.parameters);
    for (const GradientBucket& bucket : plan.buckets) {
      int layer = static_cast<int>(plan.architecture.num_hidden_layers);
      for (const int weight : bucket.weights) {
        layer = std::min(layer, plan.parameters[flat.members[static_cast<size_t>(weight)].first].layer);
      }
      last_written.push_back(layer);
      is_local.push_back(plan.mesh.group_size(bucket.axes) == 1);
    }
  }

  RowMemory rows;
  ShardedUnits units;
  std::vector<std::vector<int>> buckets_by_stage;
  std::vector<int> last_written;  // by bucket: the layer whose backward completes its gradients
  std::vector<bool> is_local;     // by bucket: one rank alone has its gradients
};

// Returns bytes of other ranks' partial sums by layer: the embedding, the blocks, then the head. An entry counts the
// reductions of the rank's buckets that the backward of this layer completes and so starts. All reductions may be in
// progress at the same time, so the entries add up. Over NCCL, one reduction after the other uses the same buffer: it
// is the largest one, from the first reduction on.
std::vector<int64_t> reductions_by_layer(const ParameterPlacement& plan, const SharedFacts& facts,
                                         const OwnedCosts& owned) {
  std::vector<int64_t> bytes(static_cast<size_t>(plan.architecture.num_hidden_layers) + 2);
  int64_t largest = 0;
  size_t first = 0;  // the layer of the first reduction, which is the last layer that has one
  for (size_t i = 0; i < owned.buckets.size(); ++i) {
    const auto layer = static_cast<size_t>(facts.last_written[i] + 1);
    const int64_t buffer = owned.buckets[i].reduction_buffer;
    bytes[layer] += buffer;
    largest = std::max(largest, buffer);
    if (buffer > 0) first = std::max(first, layer);
  }
  if (!uses_nccl(plan.config)) return bytes;
  std::ranges::fill(bytes, 0);
  bytes[first] = largest;
  return bytes;
}

// Returns the bytes of the rank's units by stage.
std::vector<UnitBytes> unit_bytes(const ParameterPlacement& plan, const SharedFacts& facts, const RankValues& rank) {
  const int master = master_bytes(plan.config);
  std::vector<UnitBytes> units;
  for (size_t stage = 0; stage < facts.buckets_by_stage.size(); ++stage) {
    UnitBytes& unit = units.emplace_back();
    unit.forward = facts.units.forward[stage], unit.backward = facts.units.backward[stage];
    const std::vector<int>& own = facts.buckets_by_stage[stage];
    for (int number = 0; number < std::ssize(own); ++number) {
      const auto index = static_cast<size_t>(own[static_cast<size_t>(number)]);
      const int64_t elements = plan.belongs_to_unit(index) ? rank.held->buckets[index].elements.size() : 0;
      if (plan.shards_weights()) unit.weights += elements * dtype_bytes(plan.config.training.dtype);
      unit.buckets[number] = {.gradients = elements * master, .is_local = facts.is_local[index]};
    }
  }
  return units;
}

// Returns the bytes of the reduction of a stage's bucket with this number.
ReductionBytes reduction_bytes(const ParameterPlacement& plan, const SharedFacts& facts, const RankValues& rank,
                               int stage, int number) {
  const auto at = static_cast<size_t>(stage);
  const int bucket = facts.buckets_by_stage[at][static_cast<size_t>(number)];
  const BucketCosts& costs = rank.owned->buckets[static_cast<size_t>(bucket)];
  if (!plan.config.optimizer.in_backward) return {.buffer = costs.reduction_buffer};
  const int64_t update = rank.matrices->temporary_bytes[at] + rank.owned->state_on_device;
  return {.buffer = costs.reduction_buffer, .update = std::max(update, costs.copies_buffer)};
}

// Returns the peaks of the rank's row of passes. `reductions`: partial sums by layer; empty if gradients are reduced by
// units.
RowProfile row_profile(const ParameterPlacement& plan, const SharedFacts& facts, const RankValues& rank,
                       const std::vector<int64_t>& reductions) {
  const auto& microbatches = rank.data_shard.microbatches;
  const auto& row_of_rank = plan.schedule.rows[static_cast<size_t>(rank.pipeline_rank)];
  const std::vector<int> completes = completing(row_of_rank, rank.data_shard, plan.stages.size());
  // By stage: bytes of a microbatch, by its number of sequences and whether it completes the stage's gradients.
  std::vector<std::map<std::pair<int64_t, bool>, MicrobatchBytes>> known(plan.stages.size());
  for (const auto& [sequences, count] : microbatch_sizes(rank.data_shard)) {
    const MicrobatchMemory& microbatch = rank.microbatches->at(sequences).memory;
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      if (plan.stages[stage].owner != rank.pipeline_rank) continue;
      for (const bool last : {false, true}) {
        known[stage][{sequences, last}] =
            microbatch_bytes(microbatch, plan.stages[stage], plan.architecture.dropout > 0,
                             last ? reductions : std::vector<int64_t>());
      }
    }
  }
  const auto bytes_of = [&](int stage, int microbatch) {
    const int64_t sequences = microbatches[static_cast<size_t>(microbatch)].size();
    const auto at = static_cast<size_t>(stage);
    return sequences == 0 ? MicrobatchBytes() : known[at].at({sequences, microbatch == completes[at]});
  };
  std::vector<UnitBytes> units;
  if (plan.has_gradients_by_unit()) units = unit_bytes(plan, facts, rank);
  return facts.rows.profile(rank.pipeline_rank, bytes_of, units);
}

// The row profiles of ranks, each computed once. Ranks whose rows are reduced by units share one, although their chunks
// of buckets differ.
class RowProfiles {
 public:
  RowProfiles(const ParameterPlacement& plan, const SharedFacts& facts) : plan_(plan), facts_(facts) {}

  RowBytes peak(const RankValues& rank) {
    RowBytes row = profile(rank).peak(reductions_of(rank));
    row.peak.partial_sums += sums_of_vocabulary_rows(rank);
    row.peak.temporaries += streams(rank);
    return row;
  }
  /// The most bytes held during each Action of the row.
  std::vector<int64_t> trace(const RankValues& rank) {
    const size_t actions = plan_.schedule.rows[static_cast<size_t>(rank.pipeline_rank)].size();
    std::vector<int64_t> trace = profile(rank).trace(actions, reductions_of(rank));
    for (int64_t& bytes : trace) bytes += sums_of_vocabulary_rows(rank) + streams(rank);
    return trace;
  }

 private:
  RowProfile::BytesOfReduction reductions_of(const RankValues& rank) const {
    return [&](int stage, int number) { return reduction_bytes(plan_, facts_, rank, stage, number); };
  }
  // Partial sums for the gradients of the rank's vocabulary rows. The rank of the first stage counts them with its
  // backward.
  int64_t sums_of_vocabulary_rows(const RankValues& rank) const {
    const bool has_rows = !plan_.vocabulary.empty() && !plan_.has_gradients_by_unit();
    if (!has_rows || plan_.stages.front().owner == rank.pipeline_rank) return 0;
    return reductions_by_layer(plan_, facts_, *rank.owned).front();
  }
  int64_t streams(const RankValues& rank) const {
    int64_t streams = 0;
    for (const auto& [sequences, count] : microbatch_sizes(rank.data_shard)) {
      streams = std::max(streams, rank.microbatches->at(sequences).memory.vocabulary.streams);
    }
    return streams;
  }
  const RowProfile& profile(const RankValues& rank) {
    std::vector<int64_t> reductions;
    if (!plan_.has_gradients_by_unit()) reductions = reductions_by_layer(plan_, facts_, *rank.owned);
    const auto [profile, is_new] =
        known_.try_emplace({rank.pipeline_rank, rank.data_shard.sequences.size(), rank.microbatches.get(),
                            plan_.has_gradients_by_unit() ? rank.held.get() : nullptr, reductions});
    if (is_new) profile->second = row_profile(plan_, facts_, rank, reductions);
    return profile->second;
  }

  using Key =
      std::tuple<int, int64_t, const MicrobatchCostsBySize*, const ParameterShard*, std::vector<int64_t>>;
  const ParameterPlacement& plan_;
  const SharedFacts& facts_;
  std::map<Key, RowProfile> known_;
};

// Returns the temporary bytes after the row: of the sums over copies, and of an update. Sharded gradients may all be
// summed at a time (but see reductions_by_layer() about NCCL), others one bucket after the other.
int64_t bytes_after_row(const ParameterPlacement& plan, const RankValues& rank) {
  if (plan.config.optimizer.in_backward) return 0;
  int64_t sums = 0;
  for (const BucketCosts& bucket : rank.owned->buckets) {
    const bool adds_up = plan.has_gradients_by_unit() && !uses_nccl(plan.config);
    sums = adds_up ? sums + bucket.copies_buffer : std::max(sums, bucket.copies_buffer);
  }
  return std::max(sums, std::ranges::max(rank.matrices->temporary_bytes) + rank.owned->state_on_device);
}

MemoryBytes memory_of_rank(const ParameterPlacement& plan, const RankValues& rank, const RowBytes& row) {
  const int element = dtype_bytes(plan.config.training.dtype), master = master_bytes(plan.config);
  const int64_t elements = rank.held->elements, owned = rank.owned->elements;
  int64_t unsharded = 0;  // elements of buckets that are not sharded with ZeRO stages 2 and 3
  for (size_t bucket = 0; bucket < rank.held->buckets.size(); ++bucket) {
    unsharded += plan.belongs_to_unit(bucket) ? 0 : rank.held->buckets[bucket].elements.size();
  }
  const auto kept = [&](KeptElements which) {
    return which == KeptElements::all ? elements : which == KeptElements::owned ? unsharded + owned : unsharded;
  };
  // In the dtype of the masters, working values share their memory.
  const KeptElements values = plan.kept_values();
  const bool shares = element == master;
  const int64_t masters = shares && values == KeptElements::all ? 0 : owned * master;
  const int64_t kept_values = kept(shares && values == KeptElements::owned ? KeptElements::none : values);
  const int64_t state = rank.owned->state;
  // With post-validation a rank keeps copies of weights and optimizer state, because its step may have to be undone.
  // The last pipeline rank has the gradient norm when it steps, and keeps none.
  const bool undoes = plan.post_validates() && rank.pipeline_rank + 1 < plan.mesh.axis_size(kPipeline);
  const int64_t state_copies = undoes ? 2 * state : state;
  const int64_t on_host = plan.config.optimizer.offload ? state_copies : 0;
  const int64_t after = bytes_after_row(plan, rank);
  const Architecture& a = plan.architecture;
  const int64_t tables = a.rotary() ? a.max_position_embeddings * a.head_dim * master : 0;
  constexpr int64_t kStatistics =
      StepSignals::kBytes + sizeof(double);  // and the gradient scale that follows from them
  return {.parameters = kept_values * element + masters,
          .gradients = kept(plan.kept_gradients()) * master,
          .optimizer = state_copies + (undoes ? owned * master : 0) - on_host,
          .activations = row.kept,
          .working = std::max(row.peak.total(), after) - row.kept + tables + kStatistics,
          .peak = row.peak.total() >= after ? std::optional(row.at) : std::nullopt,
          .at_peak = row.peak,
          .host = row.host + on_host,
          .host_copies = 2 * (row.offloaded + (plan.config.optimizer.offload ? state : 0))};
}

}  // namespace

std::vector<MemoryBytes> count_memory(const ParameterPlacement& plan, const std::vector<RankValues>& ranks) {
  std::vector<MemoryBytes> memory;
  const SharedFacts facts(plan);
  RowProfiles rows(plan, facts);
  for (const RankValues& rank : ranks) memory.push_back(memory_of_rank(plan, rank, rows.peak(rank)));
  return memory;
}

RankTrace trace_memory(const Plan& plan, int rank) {
  const SharedFacts facts(plan);
  const RankValues values = rank_values(plan, rank);
  RankTrace trace{.row = RowProfiles(plan, facts).trace(values)};
  const MemoryBytes& memory = plan.memory_of(rank);
  trace.always = memory.total() - std::max(memory.at_peak.total(), bytes_after_row(plan, values));
  return trace;
}

}  // namespace orthant

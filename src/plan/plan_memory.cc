// Counts the memory of a rank: parameters, gradients and optimizer state by elements, and activations by following its
// row of the schedule. Ranks with equal rows share the result.
#include "plan/plan_memory.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <utility>
#include <vector>

#include "mesh/staging.h"
#include "plan/gradient_staging.h"
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

// Returns the bytes of the buffers that sum the rank's chunk of a bucket over the copies of sharded states.
int64_t copies_buffer(const ParameterPlacement& plan, const GradientBucket& bucket, int rank) {
  const int copies = plan.mesh.axis_size(kReplica);
  if (copies == 1) return 0;
  const int64_t own = bucket.chunk(plan.mesh.group_index(rank, bucket.axes)).size();
  const int64_t summed = shard(own, copies, plan.mesh.coord(rank, kReplica)).size();
  return reduction_buffer_bytes(summed * master_bytes(plan.config), copies);
}

// Returns the bytes of offloaded optimizer state that the device holds during an update: of the two largest parameters,
// because one parameter's state is copied while the other is updated.
int64_t state_on_device(const ParameterPlacement& plan, int rank) {
  const OptimizerConfig& optimizer = plan.config.optimizer;
  if (!optimizer.offload) return 0;
  int64_t largest = 0, second = 0;
  const std::vector<Range> owned = plan.owned_parts(rank);
  for (size_t i = 0; i < owned.size(); ++i) {
    int64_t bytes = owned[i].size() * state_bytes(optimizer, plan.parameters[i], master_bytes(plan.config));
    if (bytes > largest) std::swap(bytes, largest);
    second = std::max(second, bytes);
  }
  return largest + second;
}

// Returns the bytes of the rank's units by stage. `reductions`: the result of reduction_buffers().
std::vector<UnitBytes> unit_bytes(const ParameterPlacement& plan, const ParameterShard& held,
                                  const std::vector<int64_t>& reductions, const MatrixCosts& matrices, int rank) {
  const bool updates = plan.config.optimizer.in_backward;
  const int master = master_bytes(plan.config);
  std::vector<UnitBytes> units;
  const ShardedUnits sharded = plan.units();
  const std::vector<std::vector<int>> by_stage = plan.buckets_by_stage();
  const std::vector<int64_t>& of_updates = matrices.temporary_bytes;
  const int64_t state = state_on_device(plan, rank);
  for (size_t stage = 0; stage < by_stage.size(); ++stage) {
    UnitBytes& unit = units.emplace_back();
    unit.forward = sharded.forward[stage], unit.backward = sharded.backward[stage];
    for (int number = 0; number < std::ssize(by_stage[stage]); ++number) {
      const auto index = static_cast<size_t>(by_stage[stage][static_cast<size_t>(number)]);
      const GradientBucket& bucket = held.buckets[index];
      const int64_t elements = plan.belongs_to_unit(index) ? bucket.elements.size() : 0;
      if (plan.shards_weights()) unit.weights += elements * dtype_bytes(plan.config.training.dtype);
      unit.buckets[number] = {
          .gradients = elements * master,
          .reduction = reductions[index],
          .update = updates ? std::max(of_updates[stage] + state, copies_buffer(plan, bucket, rank)) : 0,
          .is_local = plan.mesh.group_size(bucket.axes) == 1};
    }
  }
  return units;
}

// Returns the bytes of other ranks' partial sums that the rank holds while it reduces each bucket.
std::vector<int64_t> reduction_buffers(const ParameterPlacement& plan, const ParameterShard& held, int rank) {
  std::vector<int64_t> bytes;
  for (const GradientBucket& bucket : held.buckets) {
    const int ranks = plan.mesh.group_size(bucket.axes), position = plan.mesh.group_index(rank, bucket.axes);
    const Range summed =
        plan.shards_optimizer() ? bucket.chunk(position) : shard(bucket.elements.size(), ranks, position);
    bytes.push_back(ranks == 1 ? 0 : reduction_buffer_bytes(summed.size() * master_bytes(plan.config), ranks));
  }
  return bytes;
}

// Bytes of other ranks' partial sums that a rank holds during reductions. One of the two is empty.
struct ReductionBytes {
  ReductionBytes(const ParameterPlacement& plan, const ParameterShard& held, const GradientStaging& staging, int rank) {
    if (plan.has_gradients_by_unit()) {
      by_bucket = reduction_buffers(plan, held, rank);
    } else {
      by_layer = staging.of(held.buckets, rank);
    }
  }
  auto operator<=>(const ReductionBytes&) const = default;

  std::vector<int64_t> by_layer, by_bucket;
};

// Returns the peak bytes of the rank's row of passes.
RowBytes row_bytes(const ParameterPlacement& plan, const ParameterShard& held, const ReductionBytes& reductions,
                   const MatrixCosts& matrices, const RowMemory& rows, int rank) {
  const auto& microbatches = plan.data_shard(rank).microbatches;
  const std::vector<int> completes = completing(plan.row(rank), plan.data_shard(rank), plan.stages.size());
  // By stage: bytes of a microbatch, by its number of sequences and whether it completes the stage's gradients.
  std::vector<std::map<std::pair<int64_t, bool>, MicrobatchBytes>> known(plan.stages.size());
  int64_t streams = 0;
  for (const auto& [sequences, count] : microbatch_sizes(plan.data_shard(rank))) {
    const MicrobatchMemory microbatch = microbatch_memory(plan, rank, sequences);
    streams = std::max(streams, microbatch.vocabulary.streams);
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      if (plan.stages[stage].owner != plan.pipeline_rank(rank)) continue;
      for (const bool last : {false, true}) {
        known[stage][{sequences, last}] =
            microbatch_bytes(microbatch, plan.stages[stage], plan.architecture.dropout > 0,
                             last ? reductions.by_layer : std::vector<int64_t>());
      }
    }
  }
  const auto bytes_of = [&](int stage, int microbatch) {
    const int64_t sequences = microbatches[static_cast<size_t>(microbatch)].size();
    const auto at = static_cast<size_t>(stage);
    return sequences == 0 ? MicrobatchBytes() : known[at].at({sequences, microbatch == completes[at]});
  };
  std::vector<UnitBytes> units;
  if (plan.has_gradients_by_unit()) units = unit_bytes(plan, held, reductions.by_bucket, matrices, rank);
  RowBytes row = rows.peak(plan.pipeline_rank(rank), bytes_of, units);
  row.peak.temporaries += streams;
  if (plan.has_gradients_by_unit()) return row;
  // Partial sums for the gradients of the rank's vocabulary rows. The rank of the first stage counts them with its
  // backward.
  if (!plan.vocabulary.empty() && plan.stages.front().owner != plan.pipeline_rank(rank)) {
    row.peak.partial_sums += reductions.by_layer.front();
  }
  return row;
}

// Ranks with equal keys have rows with equal bytes, which are computed once.
struct RowKey {
  RowKey(const ParameterPlacement& plan, const ParameterShards& held, ReductionBytes reductions_in,
         const MatrixCosts& matrices, int rank)
      : positions{held.replica_leader(rank), plan.mesh.coord(rank, kColumn), plan.mesh.coord(rank, kUlysses),
                  plan.mesh.coord(rank, kRing)},
        reductions(std::move(reductions_in)) {
    for (const Range& microbatch : plan.data_shard(rank).microbatches) sequences.push_back(microbatch.size());
    if (!plan.config.optimizer.in_backward) return;
    updates = matrices.temporary_bytes;
    updates.push_back(state_on_device(plan, rank));
  }
  auto operator<=>(const RowKey&) const = default;

  std::array<int, 4> positions;
  ReductionBytes reductions;
  std::vector<int64_t> sequences, updates;
};

// Returns the bytes of the numbers that all ranks exchange in a step: step signals and squared gradient norms.
int64_t statistics_bytes(const ParameterPlacement& plan) {
  const int64_t numbers = StepSignals::elements(plan.mesh.size());
  return numbers * static_cast<int64_t>(sizeof(double));
}

// Returns the bytes of the optimizer's state tensors.
int64_t state_bytes_of(const ParameterPlacement& plan, const ParameterShard& held, int rank) {
  const int master = master_bytes(plan.config);
  int64_t bytes = 0;
  std::vector<Range> owned;  // by parameter; only for optimizers that treat parameters differently
  for (const StateTensor& tensor : optimizer_spec(plan.config.optimizer).state) {
    if (tensor.scope == StateScope::every_parameter) {
      bytes += master * (plan.shards_optimizer() ? held.chunk_elements(plan.mesh, rank) : held.elements);
      continue;
    }
    if (owned.empty()) owned = plan.owned_parts(rank);
    for (size_t i = 0; i < owned.size(); ++i) {
      if (tensor.has(plan.parameters[i])) bytes += master * owned[i].size();
    }
  }
  return bytes;
}

// Returns the temporary bytes after the row: of the sums over copies, and of an update. Sharded gradients may all be
// summed at a time, others one bucket after the other.
int64_t bytes_after_row(const ParameterPlacement& plan, const ParameterShard& held, const MatrixCosts& matrices,
                        int rank) {
  if (plan.config.optimizer.in_backward) return 0;
  int64_t sums = 0;
  for (const GradientBucket& bucket : held.buckets) {
    const int64_t bytes = copies_buffer(plan, bucket, rank);
    sums = plan.has_gradients_by_unit() ? sums + bytes : std::max(sums, bytes);
  }
  return std::max(sums, std::ranges::max(matrices.temporary_bytes) + state_on_device(plan, rank));
}

MemoryBytes memory_of_rank(const ParameterPlacement& plan, const ParameterShard& held, const RowBytes& row,
                           const MatrixCosts& matrices, int64_t statistics, int rank) {
  const int element = dtype_bytes(plan.config.training.dtype), master = master_bytes(plan.config);
  const int64_t elements = held.elements;
  const int64_t owned = plan.shards_optimizer() ? held.chunk_elements(plan.mesh, rank) : elements;
  int64_t unsharded = 0;  // elements of buckets that are not sharded with ZeRO stages 2 and 3
  for (size_t bucket = 0; bucket < held.buckets.size(); ++bucket) {
    unsharded += plan.belongs_to_unit(bucket) ? 0 : held.buckets[bucket].elements.size();
  }
  const auto kept = [&](KeptElements which) {
    return which == KeptElements::all ? elements : which == KeptElements::owned ? unsharded + owned : unsharded;
  };
  // In the dtype of the masters, working values share their memory.
  const KeptElements values = plan.kept_values();
  const bool shares = element == master;
  const int64_t masters = shares && values == KeptElements::all ? 0 : owned * master;
  const int64_t kept_values = kept(shares && values == KeptElements::owned ? KeptElements::none : values);
  const int64_t state = state_bytes_of(plan, held, rank);
  // With post-validation a rank keeps copies of weights and optimizer state, because its step may have to be undone.
  // The last pipeline rank has the gradient norm when it steps, and keeps none.
  const bool undoes = plan.post_validates() && plan.pipeline_rank(rank) + 1 < plan.mesh.axis_size(kPipeline);
  const int64_t state_copies = undoes ? 2 * state : state;
  const int64_t on_host = plan.config.optimizer.offload ? state_copies : 0;
  const int64_t tables = plan.architecture.max_position_embeddings * plan.architecture.head_dim * master;
  return {
      .parameters = kept_values * element + masters,
      .gradients = kept(plan.kept_gradients()) * master,
      .optimizer = state_copies + (undoes ? owned * master : 0) - on_host,
      .activations = row.kept,
      .working =
          std::max(row.peak.total(), bytes_after_row(plan, held, matrices, rank)) - row.kept + tables + statistics,
      .peak = row.peak.total() >= bytes_after_row(plan, held, matrices, rank) ? std::optional(row.at) : std::nullopt,
      .at_peak = row.peak,
      .host = row.host + on_host,
      .host_copies = 2 * (row.offloaded + (plan.config.optimizer.offload ? state : 0))};
}

}  // namespace

std::vector<MemoryBytes> count_memory(const ParameterPlacement& plan, const ParameterShards& held,
                                      const MatrixCostsByRank& updates) {
  std::vector<MemoryBytes> memory;
  const RowMemory rows(plan.schedule);
  const GradientStaging staging(plan);
  const int64_t statistics = statistics_bytes(plan);
  std::map<RowKey, RowBytes> known;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const ParameterShard& own = held.of(rank);
    const ReductionBytes reductions(plan, own, staging, rank);
    const auto [row, is_new] = known.try_emplace(RowKey(plan, held, reductions, updates.of(rank), rank));
    if (is_new) row->second = row_bytes(plan, own, reductions, updates.of(rank), rows, rank);
    memory.push_back(memory_of_rank(plan, own, row->second, updates.of(rank), statistics, rank));
  }
  return memory;
}

}  // namespace orthant

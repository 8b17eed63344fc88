// Counts the memory of a rank: parameters, gradients and optimizer state by elements, and activations by following its
// row of the schedule. Ranks with equal rows share the result.
#include "plan/plan_memory.h"

#include <algorithm>
#include <array>
#include <compare>
#include <map>
#include <utility>
#include <vector>

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

// Returns the peak bytes of the rank's row of passes. `begun` is the result of GradientStaging::of().
RowBytes row_bytes(const ParameterPlacement& plan, const std::vector<int64_t>& begun, const RowMemory& rows, int rank) {
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
                             last ? begun : std::vector<int64_t>());
      }
    }
  }
  RowBytes row = rows.peak(plan.pipeline_rank(rank), [&](int stage, int microbatch) {
    const int64_t sequences = microbatches[static_cast<size_t>(microbatch)].size();
    const auto at = static_cast<size_t>(stage);
    return sequences == 0 ? MicrobatchBytes() : known[at].at({sequences, microbatch == completes[at]});
  });
  row.all += streams;
  // Partial sums for the gradients of the rank's vocabulary rows. The rank of the first stage counts them with its
  // backward.
  if (!plan.vocabulary.empty() && plan.stages.front().owner != plan.pipeline_rank(rank)) row.all += begun.front();
  return row;
}

// Ranks with equal keys have rows with equal bytes, which are computed once.
struct RowKey {
  RowKey(const ParameterPlacement& plan, const ParameterShards& held, std::vector<int64_t> sums, int rank)
      : positions{held.replica_leader(rank), plan.mesh.coord(rank, kColumn), plan.mesh.coord(rank, kUlysses),
                  plan.mesh.coord(rank, kRing)},
        begun(std::move(sums)) {
    for (const Range& microbatch : plan.data_shard(rank).microbatches) sequences.push_back(microbatch.size());
  }
  auto operator<=>(const RowKey&) const = default;

  std::array<int, 4> positions;
  std::vector<int64_t> begun, sequences;
};

// Returns the bytes of the numbers that all ranks exchange in a step: step signals and squared gradient norms.
int64_t statistics_bytes(const ParameterPlacement& plan) {
  int64_t numbers = StepSignals::elements(plan.mesh.size());
  return numbers * static_cast<int64_t>(sizeof(double));
}

// Returns the bytes of the optimizer's state tensors.
int64_t optimizer_bytes(const ParameterPlacement& plan, const ParameterShard& held, int rank) {
  const int master = master_bytes(plan.config);
  int64_t bytes = 0;
  std::vector<Range> owned;
  for (const StateTensor& tensor : optimizer_spec(plan.config.optimizer).state) {
    if (tensor.scope == StateScope::every_parameter) {
      bytes += master * (plan.shards_optimizer() ? held.chunk_elements(plan.mesh, rank) : held.elements);
      continue;
    }
    if (owned.empty()) owned = plan.owned_parts(rank);
    for (size_t i = 0; i < owned.size(); ++i) bytes += tensor.has(plan.parameters[i]) ? master * owned[i].size() : 0;
  }
  return bytes;
}

MemoryBytes memory_of_rank(const ParameterPlacement& plan, const ParameterShard& held, const RowBytes& row,
                           int64_t told, int rank) {
  const int element = dtype_bytes(plan.config.training.dtype), master = master_bytes(plan.config);
  const int64_t elements = held.elements;
  const int64_t owned = plan.shards_optimizer() ? held.chunk_elements(plan.mesh, rank) : elements;
  const int64_t state = optimizer_bytes(plan, held, rank);
  // With post-validation a rank keeps copies of weights and optimizer state, because its step may have to be undone.
  // The last pipeline rank has the gradient norm when it steps, and keeps none.
  const bool undoes = plan.post_validates() && plan.pipeline_rank(rank) + 1 < plan.mesh.axis_size(kPipeline);
  const int64_t tables = plan.architecture.max_position_embeddings * plan.architecture.head_dim * master;
  return {.parameters = elements * element + (element == master ? 0 : owned * master),
          .gradients = elements * master,
          .optimizer = undoes ? 2 * state + owned * master : state,
          .activations = row.kept,
          .working = row.all - row.kept + tables + told};
}

}  // namespace

std::vector<MemoryBytes> count_memory(const ParameterPlacement& plan, const ParameterShards& held) {
  std::vector<MemoryBytes> memory;
  const RowMemory rows(plan.schedule);
  const GradientStaging staging(plan);
  const int64_t told = statistics_bytes(plan);
  std::map<RowKey, RowBytes> known;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const ParameterShard& own = held.of(rank);
    const std::vector<int64_t> begun = staging.of(own.buckets, rank);
    const auto [row, is_new] = known.try_emplace(RowKey(plan, held, begun, rank));
    if (is_new) row->second = row_bytes(plan, begun, rows, rank);
    memory.push_back(memory_of_rank(plan, own, row->second, told, rank));
  }
  return memory;
}

}  // namespace orthant

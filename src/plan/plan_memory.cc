#include "plan/plan_memory.h"

#include <map>
#include <tuple>
#include <vector>

#include "plan/gradient_staging.h"
#include "plan/microbatch_memory.h"

namespace orthant {
namespace {

// Of what a rank shares with those like it.
struct Held {
  FlatLayout flat;
  std::vector<GradientBucket> buckets;
};

// What each of its passes takes, and all of its row's at their peak.
RowBytes row_bytes(const Plan& plan, const Held& held, const RowMemory& rows, int rank) {
  const auto& microbatches = plan.share(rank).microbatches;
  int completes = static_cast<int>(microbatches.size()) - 1;  // the last with sequences: then gradients are summed
  while (completes > 0 && microbatches[static_cast<size_t>(completes)].size() == 0) --completes;
  const std::vector<int64_t> begun = gradient_staging(plan, held.buckets, rank);
  std::map<std::tuple<size_t, int64_t, bool>, PassBytes> known;  // by stage, sequences, and whether it is that one
  for (const auto& [sequences, count] : microbatch_sizes(plan.share(rank))) {
    if (sequences == 0) continue;
    const MicrobatchMemory microbatch = microbatch_memory(plan, rank, sequences);
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      if (plan.stages[stage].owner != plan.pipeline_rank(rank)) continue;
      for (const bool last : {false, true}) {
        known[{stage, sequences, last}] = pass_bytes(microbatch, plan.stages[stage], plan.architecture.dropout > 0,
                                                     last ? begun : std::vector<int64_t>());
      }
    }
  }
  return rows.peak(plan.pipeline_rank(rank), [&](int stage, int microbatch) {
    const int64_t sequences = microbatches[static_cast<size_t>(microbatch)].size();
    const auto found = known.find({static_cast<size_t>(stage), sequences, microbatch == completes});
    return found == known.end() ? PassBytes{} : found->second;
  });
}

MemoryBytes memory_of_rank(const Plan& plan, const Held& held, const RowMemory& rows, int rank) {
  const int element = dtype_bytes(plan.config.training.dtype), master = master_bytes(plan.config);
  const int64_t elements = held.flat.elements;
  const RowBytes row = row_bytes(plan, held, rows, rank);
  const int64_t tables = plan.architecture.max_position_embeddings * plan.architecture.head_dim * master;
  return {.parameters = elements * (element == master ? master : master + element),
          .gradients = elements * master,
          .optimizer = 2 * elements * master,
          .activations = row.kept,
          .working = row.all - row.kept + tables};
}

}  // namespace

void add_memory(Plan& plan) {
  const RowMemory rows(plan.schedule);
  std::map<int, Held> held;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    if (plan.first_like(rank) == rank) {
      held.emplace(rank, Held{flat_layout(plan.parameters_of(rank)), plan.buckets_of(rank)});
    }
    plan.memory.push_back(memory_of_rank(plan, held.at(plan.first_like(rank)), rows, rank));
  }
}

}  // namespace orthant

// Passes that place UNSHARD, RESHARD and REDUCE for weights and gradients that are sharded over the ranks that sum a
// gradient: Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, stages 2 and 3.
//
// Weights and gradients are gathered and reduced by units. A unit is a stage of the split schedule: the embedding, one
// block, or the last norm with the head. Example, a model of one block (stage 1), one microbatch, reshard "microbatch":
//
//   0UNSHARD 1UNSHARD 0F0 0RESHARD 2UNSHARD 1F0 1RESHARD 2F0 2RESHARD
//   2UNSHARD 1UNSHARD 2B0 2RESHARD 2REDUCE_GRAD0 0UNSHARD 1B0 1RESHARD 1REDUCE_GRAD0 0B0 0RESHARD 0REDUCE_GRAD0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace orthant {

/// Gathered weights are freed after the row's last pass that reads them. microbatch: also after every forward and
/// backward. never: also after a backward, if no microbatch of the stage is between its forward and its backward.
enum class Reshard { never, step, microbatch };
/// The names of these rules in the run file, in the order of the enumeration.
inline constexpr const char* kReshardNames[] = {"never", "step", "microbatch"};
Reshard reshard_named(const std::string& name);
std::string name_of(Reshard reshard);

/// True if the gradients of every microbatch are reduced by themselves, not only their sum over the step.
bool reduces_each_microbatch(int64_t zero_stage, Reshard reshard);

/// The sharded units of a schedule whose stages are units.
struct ShardedUnits {
  /// By stage: the units of its F, and those of its B, I and W. Each list has the stage itself, if it is a unit. F of a
  /// tied output layer also uses the unit of the embedding.
  std::vector<std::vector<int>> forward, backward;

  /// The units of a pass. F, B and I read their weights; B, I, W and the F with the loss write their gradients.
  const std::vector<int>& units_of(const Action& pass) const;
  /// By stage: positions in buckets_by_stage()[stage], as in REDUCE, of the buckets that the stage reduces after its
  /// own backward. All others follow at the end of the row.
  std::vector<std::vector<int>> buckets;
};

/// The largest number of units whose weights are gathered at a time with Reshard::microbatch.
inline constexpr size_t kMostGatheredUnits = 2;

/// Returns a row with UNSHARD and RESHARD for the units that its passes read. A unit is gathered one pass ahead, so
/// that its all-gather overlaps with computation, unless the pass just before freed it. Reshard::microbatch gathers at
/// most kMostGatheredUnits at a time: a unit beyond that, as the second one of a head with a tied table, is gathered
/// right before the pass that reads it.
std::vector<Action> add_gathers(const std::vector<Action>& row, const ShardedUnits& units, Reshard reshard);

/// Moves the REDUCE Actions of the units' buckets from the end of the row to the last backward of each stage, or, with
/// `each_microbatch`, to every backward.
Schedule reduce_after_backward(const Schedule& schedule, const ShardedUnits& units, bool each_microbatch);

}  // namespace orthant

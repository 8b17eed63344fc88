// Compares what blocks can recompute in backward, for the plan's run: memory, extra FLOPs and extra bytes sent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "advice/compared_plan.h"
#include "plan/plan.h"

namespace orthant {

/// One setting of [activation_checkpoint] for the same run, and its costs.
struct RecomputationChoice : ComparedPlan {
  ActivationCheckpointConfig setting;
  std::string name;                 // "none", "norms + swiglu", "full, every 2 blocks"
  double extra_flops = 0;           // FLOPs that are repeated, as a fraction of those of a step without recomputation
  int64_t extra_bytes = 0;          // of the bytes that are sent, more than without recomputation
  int64_t repeated_operations = 0;  // over all blocks, products or not
};

/// Returns no recomputation, all sets of operations, whole blocks, and the plan's own setting. If the run does not fit
/// run.memory_gib_per_rank without recomputation, also each set that fits in as few blocks as fit.
std::vector<RecomputationChoice> recomputation_choices(const Plan& plan);

/// Returns the choice that fits with the shortest step, or without hardware with fewest repeated FLOPs; of equals the
/// one with fewest repeated FLOPs, bytes sent, and repeated operations, in this order. Returns nullptr if no choice
/// fits, or if neither a device nor run.memory_gib_per_rank limits memory.
const RecomputationChoice* recommended(const std::vector<RecomputationChoice>& choices, const Plan& plan);

/// Returns a table of the choices with its conclusion.
std::string explain_recomputation_choices(const Plan& plan);

}  // namespace orthant

// Compares what blocks can recompute in backward, for the plan's run: memory, extra FLOPs and extra bytes sent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// One setting of [activation_checkpoint] for the same run, and its costs.
struct RecomputationChoice {
  ActivationCheckpointConfig setting;
  std::string name;            // "none", "norms + swiglu", "full, every 2 blocks"
  int64_t memory_bytes = 0;    // peak of the rank that needs most
  double extra_flops = 0;      // FLOPs that are repeated, as a fraction of those of a step without recomputation
  int64_t sent_bytes = 0;      // per step, by the busiest rank
  int64_t extra_bytes = 0;     // of these, more than without recomputation
  int64_t repeated_operations = 0;  // over all blocks, products or not
  double step_seconds = 0;          // 0 if the hardware is not known
  bool fits = false;                // the device, and run.memory_gib_per_rank
  std::string refusal = {};    // why it is illegal; empty if it is legal
  bool chosen = false;
};

/// Returns no recomputation, all sets of operations, whole blocks, and the plan's own setting. If the run does not fit
/// run.memory_gib_per_rank without recomputation, also each set that fits in as few blocks as fit.
std::vector<RecomputationChoice> recomputation_choices(const Plan& plan);

/// Returns the cheapest choice whose memory is within run.memory_gib_per_rank, by repeated FLOPs, then by bytes sent,
/// then by repeated operations; nullptr if none fits or there is no such limit.
const RecomputationChoice* cheapest(const std::vector<RecomputationChoice>& choices, const Plan& plan);

/// Returns a table of the choices with its conclusion.
std::string explain_recomputation_choices(const Plan& plan);

}  // namespace orthant

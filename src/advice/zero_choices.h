// Compares the stages of ZeRO for the plan's run: memory, and bytes sent for weights and gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "advice/compared_plan.h"
#include "plan/plan.h"

namespace orthant {

/// One stage of ZeRO for the same run, and its costs.
struct ZeroChoice : ComparedPlan {
  int64_t stage = 0;
  std::optional<Reshard> reshard = {};  // of stage 3 only
  int64_t state_bytes = 0;              // weights, gradients and optimizer state that the rank with most of them keeps
  int64_t parameter_bytes_sent = 0;     // of weights and gradients, per step by the busiest rank

  /// The name of `reshard`; empty if it has none.
  std::string reshard_name() const { return reshard ? name_of(*reshard) : ""; }
};

/// True if a rank has a replica of another rank's parameters, which ZeRO can shard.
bool has_replicas(const Plan& plan);
/// Sets the stage. With stage 0 the settings of sharded states, which then have no effect, get their defaults.
void set_zero(ParallelismConfig& parallelism, int64_t stage, Reshard reshard = Reshard::step);

/// Returns all stages, stage 3 with each reshard. Empty if no rank has a replica of another rank's parameters.
std::vector<ZeroChoice> zero_choices(const Plan& plan);

/// Returns a table of the choices; empty if there are none.
std::string explain_zero_choices(const Plan& plan);

}  // namespace orthant

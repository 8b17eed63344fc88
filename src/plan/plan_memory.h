// Counts the bytes of each rank's tensors: a part of making a Plan.
#pragma once

#include "plan/plan_parameters.h"

namespace orthant {

/// Fills plan.memory. Reads the schedule, the layouts and the buckets.
void add_memory(Plan& plan, const ParameterShards& held);

}  // namespace orthant

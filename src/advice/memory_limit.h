// Refuses plans that exceed the user's memory limit.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// Throws ConfigError if a rank of the plan needs more than run.memory_gib_per_rank. The message lists those of the
/// compared alternatives that would fit.
void require_fitting(const Plan& plan);

}  // namespace orthant

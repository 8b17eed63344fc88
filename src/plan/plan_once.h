// Makes a single plan, without comparing it with others. Alternatives are such plans.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// Like make_plan(), but without alternatives and tensor_choices, which are plans themselves. Neither resolves
/// tensor_parallel_kind = "auto" nor checks limits of size and memory. Throws ConfigError.
Plan plan_once(const Config& config, const RunFacts& facts);

}  // namespace orthant

// Plans a run for a user: chooses what the run file leaves open, and refuses with settings that work.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// Like make_plan(), but resolves tensor_parallel_kind = "auto", completes the settings that a refusal offers, and
/// refuses a plan that exceeds run.memory_gib_per_rank with the alternatives that would fit. Throws ConfigError.
Plan advised_plan(const Config& config, const RunFacts& facts);

}  // namespace orthant

// Checks and plans a run for a user: chooses what the run file leaves open, and refuses with settings that work.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// Like check_config(), but a refusal offers the nearest legal settings.
void check_with_advice(const Config& config, const BuildFeatures& features = {});

/// Like make_plan(), but resolves layout = "auto" and tensor_parallel_kind = "auto", and refuses a plan that exceeds
/// run.memory_gib_per_rank. A refusal offers the nearest legal settings, or the alternatives that would fit. Throws
/// ConfigError.
Plan advised_plan(const Config& config, const RunFacts& facts);

}  // namespace orthant

// What a run file may ask of degrees, and of what cuts sequences.
#pragma once

#include <cstdint>

#include "plan/config.h"

namespace orthant {

/// What parallelism asks for, as far as no ranks need be known; check_config() calls it. Throws ConfigError.
void check_parallelism(const Config& config);

/// How sequences are cut over that many ranks, which may be the rest of the ranks. Throws ConfigError.
void check_context_parallel(const Config& config, int64_t ulysses, int64_t ring);

}  // namespace orthant

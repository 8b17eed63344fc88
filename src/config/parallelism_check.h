// Checks the degrees of parallelism in a run file, and the keys that shard sequences.
#pragma once

#include <cstdint>

#include "config/config.h"

namespace orthant {

/// Checks the keys of [parallelism] as far as possible before the number of ranks is known. check_config() calls it.
/// Throws ConfigError.
void check_parallelism(const Config& config);

/// Checks how sequences are sharded over `ulysses` x `ring` ranks. One of the two may come from a degree of -1. Throws
/// ConfigError.
void check_context_parallel(const Config& config, int64_t ulysses, int64_t ring);

}  // namespace orthant

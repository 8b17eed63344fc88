// Checks the degrees of parallelism in a run file, and the keys that shard sequences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "mesh/mesh.h"

namespace orthant {

/// Checks the keys of [parallelism] as far as possible before the number of ranks is known. check_config() calls it.
/// Throws ConfigError.
void check_parallelism(const Config& config);

/// Checks how sequences are sharded over `ulysses` x `ring` ranks. One of the two may come from a degree of -1. Throws
/// ConfigError.
void check_context_parallel(const Config& config, int64_t ulysses, int64_t ring);

/// Returns a sentence for each setting that has no effect, because it configures the ranks of an axis with 1 rank, or
/// states that are not sharded. Such settings are legal, so that a degree or a stage can be varied alone.
std::vector<std::string> idle_settings(const Config& config, const Mesh& mesh);
/// Returns the configuration with these settings at their defaults.
Config without_idle_settings(Config config, const Mesh& mesh);

}  // namespace orthant

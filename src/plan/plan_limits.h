// What no machine could hold or count, refused before it is planned.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// Each size has its own limit in the table of keys; together they can be beyond what 64 bits count. Estimated from
/// above, in floating point, with room for the alternatives, of which layer_choices() leaves out what is beyond.
/// ConfigError with the keys that ask for too much.
void require_countable(const Config& config, const Architecture& architecture, int ranks);

/// Elements that a rank may hold or send: their bytes, several of them an element, are within 64 bits.
inline constexpr double kMostElements = 0x1p54;

/// Whether so many bytes are within run.memory_gib_per_rank.
bool fits_a_rank(const Config& config, int64_t bytes);

/// "0.0235 GiB", rounded up: in the unit of run.memory_gib_per_rank.
std::string gib_text(int64_t bytes);

/// ConfigError where some rank of the plan needs more than run.memory_gib_per_rank, with what would fit of what it was
/// compared with.
void require_fitting(const Plan& plan);

}  // namespace orthant

// Refuses runs whose sizes no machine could hold or 64 bits could not count, and plans beyond the user's memory limit.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// Throws ConfigError, with the keys that ask for too much, if the sizes together exceed what 64 bits can count. (The
/// table of keys limits each size by itself.) Sizes are estimated from above, in floating point. The limits leave room
/// for the alternatives; layer_choices() leaves out any that exceed them.
void require_countable(const Config& config, const Architecture& architecture, int ranks);

/// Upper limit of the elements that a rank holds or sends. At several bytes per element, their bytes fit 64 bits.
inline constexpr double kMostElements = 0x1p54;

/// True if `bytes` are within run.memory_gib_per_rank, where 0 is no limit.
bool fits_a_rank(const Config& config, int64_t bytes);

/// Returns "0.0235 GiB", rounded up to three digits; the unit is that of run.memory_gib_per_rank.
std::string gib_text(int64_t bytes);

/// Throws ConfigError if a rank of the plan needs more than run.memory_gib_per_rank. The message lists those of the
/// compared alternatives that would fit.
void require_fitting(const Plan& plan);

}  // namespace orthant

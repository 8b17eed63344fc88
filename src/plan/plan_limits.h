// Refuses runs whose sizes no machine could hold or 64 bits could not count.
#pragma once

#include "config/config.h"
#include "model/architecture.h"

namespace orthant {

/// Throws ConfigError, with the keys that ask for too much, if the sizes together exceed what 64 bits can count. (The
/// table of keys limits each size by itself.) Sizes are estimated from above, in floating point. The limits leave room
/// for the layouts that layer_choices() compares; it leaves out any that exceed them.
void require_countable(const Config& config, const Architecture& architecture, int ranks);

/// Upper limit of the elements that a rank holds or sends. At several bytes per element, their bytes fit 64 bits.
inline constexpr double kMostElements = 0x1p54;

}  // namespace orthant

// What no machine could hold or count, refused before it is planned.
#pragma once

#include "model/architecture.h"
#include "plan/config.h"

namespace orthant {

/// Each size has its own limit in the table of keys; together they can be beyond what 64 bits count. Estimated from
/// above, in floating point, with room for the alternatives, of which layer_choices() leaves out what is beyond.
/// ConfigError with the keys that ask for too much.
void require_countable(const Config& config, const Architecture& architecture, int ranks);

/// Elements that a rank may hold or send: their bytes, several of them an element, are within 64 bits.
inline constexpr double kMostElements = 0x1p54;

}  // namespace orthant

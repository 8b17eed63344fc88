// What no machine could hold or count, refused before it is planned.
#pragma once

#include "model/architecture.h"
#include "plan/config.h"

namespace orthant {

/// Each size has its own limit in the table of keys; together they can be beyond what 64 bits count. Estimated from
/// above, in floating point, with room for the alternatives. ConfigError with the keys that ask for too much.
void require_countable(const Config& config, const Architecture& architecture, int ranks);

}  // namespace orthant

// Counts the bytes of the tensors of ranks. A rank is known by its values only: see rank_values.h.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/rank_values.h"

namespace orthant {

/// Returns the bytes of the tensors of a rank with each of these values.
std::vector<MemoryBytes> count_memory(const ParameterPlacement& plan, const std::vector<RankValues>& ranks);

}  // namespace orthant

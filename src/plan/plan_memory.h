// Counts the bytes of each rank's tensors.
#pragma once

#include <vector>

#include "plan/matrix_updates.h"
#include "plan/plan.h"

namespace orthant {

/// Returns the bytes of each rank's tensors.
std::vector<MemoryBytes> count_memory(const ParameterPlacement& plan, const ParameterShards& held,
                                      const MatrixCostsByRank& updates);

}  // namespace orthant

// Counts the bytes that each rank sends in a step.
#pragma once

#include <vector>

#include "plan/matrix_updates.h"
#include "plan/plan.h"

namespace orthant {

/// Returns the messages of all ranks: of blocks, embedding and loss, between stages, for the reduction of gradients,
/// their norm and the step signals, and for updates of sharded matrices.
std::vector<CommunicationEntry> count_communication(const ParameterPlacement& plan, const ParameterShards& held,
                                                    const MatrixCostsByRank& updates);

}  // namespace orthant

// Counts the bytes that ranks send and receive in a step. A rank is known by its values only: see rank_values.h.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/rank_values.h"

namespace orthant {

/// Returns the messages of ranks with these values: of blocks, embedding and loss, between stages, for the reduction of
/// gradients, their norm and the step signals, and for updates of sharded matrices.
std::vector<CommunicationEntry> count_communication(const ParameterPlacement& plan,
                                                    const std::vector<RankValues>& ranks);

}  // namespace orthant

// Counts the bytes that each rank sends in a step.
#pragma once

#include <string_view>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// Names of the communication entries for messages between stages.
inline constexpr std::string_view kStageOutputs = "outputs of stages", kStageGradients = "gradients of stages' inputs";

/// Returns the messages of all ranks: of blocks, embedding and loss, between stages, and for the reduction of
/// gradients, their norm and the step signals.
std::vector<CommunicationEntry> count_communication(const ParameterPlacement& plan, const ParameterShards& held);

}  // namespace orthant

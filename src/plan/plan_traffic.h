// Counts the bytes that each rank sends in a step: a part of making a Plan.
#pragma once

#include <string_view>

#include "plan/plan_parameters.h"

namespace orthant {

/// Names of the communication entries for messages between stages.
inline constexpr std::string_view kStageOutputs = "outputs of stages", kStageGradients = "gradients of stages' inputs";

/// Adds the messages of all microbatches: of blocks, embedding and loss, and between stages.
void add_activation_traffic(Plan& plan);

/// Adds the messages that reduce gradients, their norm and the step signals.
void add_gradient_traffic(Plan& plan, const ParameterShards& held);

}  // namespace orthant

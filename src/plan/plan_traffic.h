// What each rank sends in a step: a part of making a Plan.
#pragma once

#include <string_view>

#include "plan/plan_parameters.h"

namespace orthant {

/// What stages send each other, as their entries are called.
inline constexpr std::string_view kStageOutputs = "outputs of stages", kStageGradients = "gradients of stages' inputs";

/// What blocks, embedding and loss, and stages among each other send in all microbatches.
void add_activation_traffic(Plan& plan);

/// What gradients and their norm send.
void add_gradient_traffic(Plan& plan, const HeldParts& held);

}  // namespace orthant

// What each rank sends in a step: a part of making a Plan.
#pragma once

#include "plan/plan_parameters.h"

namespace orthant {

/// What blocks, embedding and loss, and stages among each other send in all microbatches.
void add_activation_traffic(Plan& plan);

/// What gradients and their norm send.
void add_gradient_traffic(Plan& plan, const HeldParts& held);

}  // namespace orthant

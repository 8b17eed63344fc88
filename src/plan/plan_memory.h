// What each rank's tensors take: a part of making a Plan.
#pragma once

#include "plan/plan_parameters.h"

namespace orthant {

void add_memory(Plan& plan, const HeldParts& held);

}  // namespace orthant

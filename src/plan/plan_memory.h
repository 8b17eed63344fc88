// What each rank's tensors take: a part of making a Plan.
#pragma once

#include "plan/plan_parameters.h"

namespace orthant {

void add_memory(Plan& plan, const std::map<int, HeldPart>& held);

}  // namespace orthant

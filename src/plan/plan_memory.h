// What each rank's tensors take: a part of making a Plan.
#pragma once

#include "plan/plan.h"

namespace orthant {

void add_memory(Plan& plan);

}  // namespace orthant

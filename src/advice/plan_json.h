// Writes a Plan and its alternatives as JSON.
#pragma once

#include <string>

#include "plan/plan.h"

namespace orthant {

/// Returns the plan as JSON, with the fields documented for `orthant plan --json`.
std::string plan_json(const Plan& plan);

}  // namespace orthant

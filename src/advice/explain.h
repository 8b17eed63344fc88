// Writes a Plan and its alternatives as text for people.
#pragma once

#include <string>

#include "plan/plan.h"

namespace orthant {

/// Returns the plan as text for people: mesh, sharding, schedule, bytes sent, memory and alternatives.
std::string explain(const Plan& plan);

}  // namespace orthant

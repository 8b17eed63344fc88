// Writes a Plan as JSON.
#pragma once

#include <string>

#include "advice/explain.h"

namespace orthant {

/// Returns the plan as JSON, with the fields that docs/plan-json.md documents. Sections add comparisons with other
/// plans: memory zero_choices and recomputation_choices, schedule schedule_choices and vocabulary_choices, layouts
/// layouts, tensor_choices and alternatives.
std::string plan_json(const Plan& plan, const Sections& sections);

}  // namespace orthant

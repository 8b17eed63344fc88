// Writes a Plan as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "advice/explain.h"

namespace orthant {

/// Returns the plan as JSON, with the fields that docs/plan-json.md documents. Sections add comparisons with other
/// plans: memory zero_choices and recomputation_choices, schedule schedule_choices and vocabulary_choices, layouts
/// layouts, tensor_choices and alternatives.
std::string plan_json(const Plan& plan, const Sections& sections);

/// The parts of a step in seconds, by name.
nlohmann::ordered_json step_parts_json(const StepTime& step);

}  // namespace orthant

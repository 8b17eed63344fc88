// Compares all schedules for the plan's number of pipeline ranks: bubble, step time, memory and bytes sent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "advice/compared_plan.h"
#include "plan/plan.h"

namespace orthant {

/// One schedule for the same pipeline ranks, and its costs.
struct ScheduleChoice : ComparedPlan {
  std::string name;
  double bubble = 0;         // see Plan::bubble()
  double step = 0;           // see Plan::step_length()
  std::string otherwise = {};  // the other settings that must change with the schedule; may be empty
};

/// Returns every named schedule, and the run file's own if it is a CSV file. Empty if there is one pipeline rank.
std::vector<ScheduleChoice> schedule_choices(const Plan& plan);

/// Returns the plan's pipeline as text for people: a drawing of its schedule, its bubble, its stages and its ranks.
std::string explain_pipeline(const Plan& plan);

/// Returns a table of the choices; empty for one pipeline rank.
std::string explain_schedule_choices(const Plan& plan);

}  // namespace orthant

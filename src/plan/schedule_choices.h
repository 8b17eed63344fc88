// The schedules of as many pipeline ranks, beside the plan's own: how long ranks idle, and what they hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// The same ranks' stages in another order.
struct ScheduleChoice {
  std::string name;
  double bubble = 0;         // share of the step in which ranks idle
  double makespan = 0;       // in units of the plan's timeline
  int64_t memory_bytes = 0;  // of the largest rank
  int64_t sent_bytes = 0;    // of outputs of stages and their gradients, a step, by the busiest rank
  std::string otherwise = {};  // what else its run file has to say otherwise
  std::string refusal = {};    // why it cannot be; empty if it can
  bool chosen = false;
};

/// Every schedule that has a name, and the run file's where it is a file. Empty where the mesh has one pipeline rank.
std::vector<ScheduleChoice> schedule_choices(const Plan& plan);

/// The plan's pipeline for people: its schedule drawn, its stages, its ranks, its bubble.
std::string explain_pipeline(const Plan& plan);

/// A table of the choices; nothing for one pipeline rank.
std::string explain_schedule_choices(const Plan& plan);

}  // namespace orthant

// The costs that every comparison of a plan has: those of the same run with another setting.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace orthant {

/// The costs of one plan. They are 0, and `fits` is false, if planning refuses it.
struct ComparedPlan {
  int64_t memory_bytes = 0;  // of the rank that needs most
  int64_t sent_bytes = 0;    // per step by the busiest rank
  double step_seconds = 0;   // 0 if the hardware is not known
  bool fits = false;         // the device, and run.memory_gib_per_rank
  std::string refusal = {};  // why planning refuses it; empty if it is legal
  bool chosen = false;       // it is the plan itself

  bool is_legal() const { return refusal.empty(); }
};

/// Sets memory, bytes, step time and `fits` to those of `plan`.
void set_costs(ComparedPlan& compared, const Plan& plan);

}  // namespace orthant

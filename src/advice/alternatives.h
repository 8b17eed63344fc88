// Compares the plan with plans that differ in one setting: dtype, recomputation, microbatches or number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// The same run with one setting changed.
struct Alternative {
  std::string change;
  int64_t memory_bytes = 0;          // of the rank that needs most
  int64_t communication_bytes = 0;   // sent per step by the busiest rank
  std::string remark;
};

/// Returns the legal alternatives to the plan.
std::vector<Alternative> alternatives_to(const Plan& plan);

}  // namespace orthant

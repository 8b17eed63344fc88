// Measures training steps of one device on this machine.
#pragma once

#include <cstdint>
#include <string>

#include "model/architecture.h"

namespace orthant {

/// Work of a step on one device.
struct StepWork {
  Architecture model;
  int64_t microbatches = 4, tokens = 128;  // one sequence in each microbatch
  std::string dtype = "float32";
};

/// Seconds of a step on one core: forward and backward of all microbatches, and the update. All cores carry out the
/// same step at the same time. It takes about `seconds` seconds.
double measure_step(const StepWork& work, int64_t cores, double seconds);

}  // namespace orthant

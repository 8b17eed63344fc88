// The position of a run.
#pragma once

#include <cstdint>
#include <optional>

namespace orthant {

/// Everything of a run's position that does not follow from the plan. A checkpoint stores it.
struct TrainState {
  int64_t step = 0;                 // completed
  int64_t tokens = 0;               // of all ranks
  std::optional<double> norm = {};  // of the last update's gradients; earlier versions did not save it
  int64_t skipped_steps = 0;        // of the completed steps, those without an update
};

}  // namespace orthant

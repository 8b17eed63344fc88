// Learning rate as a pure function of the step: nothing to save, nothing to drift on resume.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

/// Warmup and decay in torchtitan's terms (v0.2, lr_scheduler).
struct LrSchedule {
  double lr = 0;
  int64_t steps = 0;
  int64_t warmup_steps = 0;
  std::string decay_type = "cosine";  // cosine | linear | sqrt | wsd | constant
  double decay_ratio = 1.0;           // share of the steps, at the end, in which the rate decays
  double min_lr_factor = 0.1;

  /// Rate of step s (the first is 1): s / warmup while warming up; then lr until the decay begins; then down to
  /// min_lr_factor * lr, which the last step reaches. sqrt and wsd decay as 1 - sqrt(progress).
  double at(int64_t step) const;
};

}  // namespace orthant

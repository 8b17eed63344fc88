// The learning rate as a pure function of the step, so that checkpoints need not save it.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

/// Warmup and decay with the options of torchtitan (v0.2, lr_scheduler).
struct LrSchedule {
  double lr = 0;
  int64_t steps = 0;
  int64_t warmup_steps = 0;
  std::string decay_type = "cosine";  // cosine | linear | sqrt | wsd | constant
  double decay_ratio = 1.0;           // fraction of all steps, at the end of the run, in which the rate decays
  double min_lr_factor = 0.1;

  /// The rate of step s, counted from 1. It is lr s / warmup_steps during warmup, then lr until the decay begins. It
  /// then falls to min_lr_factor * lr at the last step. sqrt and wsd decay as 1 - sqrt(progress).
  double at(int64_t step) const;
};

}  // namespace orthant

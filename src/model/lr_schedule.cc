#include "model/lr_schedule.h"

#include "base/errors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orthant {

double LrSchedule::at(int64_t step) const {
  ORTHANT_CHECK(step >= 1, step);
  if (step <= warmup_steps) return lr * static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (decay_type == "constant") return lr;
  const auto decay_steps = static_cast<double>(std::min<int64_t>(
      steps - warmup_steps, static_cast<int64_t>(std::llround(decay_ratio * static_cast<double>(steps)))));
  if (decay_steps <= 0) return lr;
  const double progress = 1.0 - static_cast<double>(steps - step) / decay_steps;
  if (progress <= 0) return lr;
  const double p = std::min(1.0, progress);
  double left = 1.0 - p;
  if (decay_type == "cosine") left = 0.5 * (1 + std::cos(std::numbers::pi * p));
  if (decay_type == "sqrt" || decay_type == "wsd") left = 1 - std::sqrt(p);
  return lr * (min_lr_factor + (1 - min_lr_factor) * left);
}

}  // namespace orthant

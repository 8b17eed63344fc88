// Bounds on the difference that rounding alone may cause between a layout's numbers and those of one device.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// The largest relative errors that rounding can explain in this plan. docs/derivations.md derives them.
struct RoundingBounds {
  double gradients = 0;  // also for the loss and the gradient norm
  double weights = 0;    // after an update; 0 below float64, except for Muon on a GPU
  double rest = 0;       // error of a gradient whose exact value is 0, relative to the norm of all gradients
};
RoundingBounds rounding_bounds(const Plan& plan);
/// Throws ConfigError if the gradient bound exceeds 0.1. A mistake such as a mean of two ranks instead of their sum, an
/// error of 0.5, must stay far above the bound.
void check_bounds_detect_mistakes(const Plan& plan);

}  // namespace orthant

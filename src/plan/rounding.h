// How far rounding may carry a layout's numbers from one device's.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// The largest relative errors that rounding explains in this plan; docs/numerics.md derives them.
struct RoundingBounds {
  double gradients = 0;  // of the loss and the norm too
  double weights = 0;    // after an update; in less than float64 none: it is of the same gradients
  double rest = 0;       // what rounding leaves of a gradient that is zero, over the norm of all gradients
};
RoundingBounds rounding_bounds(const Plan& plan);
/// ConfigError where a bound is so large that it would let a mistake pass: a mean in place of two ranks' sum is off by
/// a half.
void require_telling_bounds(const Plan& plan);

}  // namespace orthant

// Compares the metrics of two runs at equal steps, in every bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "report/scale.h"

namespace orthant {

/// The difference of one quantity between two runs, over the steps that both have.
struct Difference {
  int64_t common_steps = 0;
  int64_t unequal_steps = 0;  // steps at which a bit differs; a value that only one run knows is unequal
  int64_t first_step = 0;     // the first of them
  double largest = 0;         // the largest absolute difference of two known values
  double relative = 0;        // `largest` divided by the absolute value in the first run
  int64_t largest_step = 0;   // its step

  bool is_equal() const { return common_steps > 0 && unequal_steps == 0; }
};

/// Compares values by step. Both lists are sorted by x, which is the step; y is not-a-number if it is not known.
Difference difference_of(std::span<const Point> first, std::span<const Point> other);

/// Describes the difference: "equal in every bit" or "1.2e-07 at step 17; relative 3.1e-08, unequal from step 4"; "-"
/// without a common step.
std::string text_of(const Difference& difference);

}  // namespace orthant

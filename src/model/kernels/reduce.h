// Sums over complete tensors. Their bits do not depend on the number of threads.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// Elements per partial sum.
inline constexpr int64_t kSumBlock = 16384;

/// The sum of squares in double. Fixed blocks of kSumBlock elements, counted from x, are summed separately and added in
/// order. A NaN in x makes the result NaN; an infinity makes it infinite.
double sum_of_squares(const float* x, int64_t count);
double sum_of_squares(const double* x, int64_t count);

}  // namespace orthant

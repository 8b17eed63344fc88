// Sums over complete tensors. Their bits do not depend on the number of threads.
#pragma once

#include "base/exact_sum.h"
#include "model/kernels/element.h"

namespace orthant {

/// Adds the squares of x to the sum. Fixed blocks of kNormBlockElements elements, counted from x, are summed in double;
/// these sums are added exactly. So blocks can be assigned to ranks in any way, with the same bits. A NaN in x makes
/// the sum NaN; an infinity makes it infinite.
void add_squares(const float* x, int64_t count, ExactSum& sum);
void add_squares(const double* x, int64_t count, ExactSum& sum);

}  // namespace orthant

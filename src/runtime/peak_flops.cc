#include "runtime/peak_flops.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "model/linear.h"
#include "runtime/from_plan.h"

namespace orthant {

double measure_peak_flops(const std::string& dtype) {
  constexpr int64_t n = 512;
  at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({n, n}, scalar_type(dtype)), b = at::ones({n, n}, scalar_type(dtype));
  at::Tensor c = matrix_product(a, b);  // before the clock starts: a library may initialize itself
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    write_product(c, a, b);
    best = std::min(best, seconds_since(start));
  } while (seconds_since(begin) < 0.03);
  return 2.0 * n * n * n / best;
}

}  // namespace orthant

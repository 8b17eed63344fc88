#include "model/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace orthant {

at::Tensor orthogonalized(at::Tensor m) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  constexpr int kIterations = 5;
  const bool tall = m.size(0) > m.size(1);  // the smaller side gives the smaller products
  at::Tensor x = (tall ? m.t() : m) / m.norm().clamp_min(1e-7);
  m.reset();
  for (int i = 0; i < kIterations; ++i) {
    const at::Tensor square = x.mm(x.t());
    const at::Tensor polynomial = at::addmm(square, square, square, b, c);
    x = at::addmm(x, polynomial, x, a);
  }
  return tall ? x.t() : x;
}

void muon(const MuonStep& step) {
  const at::NoGradGuard no_grad;
  at::Tensor gradient = step.gradient * step.gradient_scale, buffer = step.momentum_buffer, weights = step.weights;
  buffer.lerp_(gradient, 1 - step.momentum);
  const at::Tensor update = orthogonalized(std::move(gradient.lerp_(buffer, step.momentum)));
  const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(weights.size(0), weights.size(1))));
  weights.mul_(1 - step.lr * step.weight_decay).sub_(update, step.lr * scale);
}

}  // namespace orthant

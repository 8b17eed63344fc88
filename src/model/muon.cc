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

std::vector<MatrixRound> Orthogonalizer::rounds(const std::vector<size_t>& matrices) const {
  std::vector<MatrixRound> rounds;
  for (const size_t matrix : matrices) rounds.push_back({matrix});
  return rounds;
}

std::vector<at::Tensor> Orthogonalizer::orthogonalized(const MatrixRound& /*round*/,
                                                       std::vector<at::Tensor> shards) const {
  for (at::Tensor& matrix : shards) matrix = orthant::orthogonalized(std::exchange(matrix, at::Tensor()));
  return shards;
}

at::Tensor muon_momentum(const at::Tensor& gradient, const at::Tensor& buffer, double momentum,
                         const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  const at::Tensor scaled = gradient * scale;
  buffer.lerp_(scaled, 1 - momentum);
  return scaled.lerp_(buffer, momentum);
}

void apply_muon(const at::Tensor& weights, const at::Tensor& update, int64_t larger_side, double lr,
                double weight_decay) {
  const at::NoGradGuard no_grad;
  const double scale = 0.2 * std::sqrt(static_cast<double>(larger_side));
  weights.mul_(1 - lr * weight_decay).sub_(update, lr * scale);
}

}  // namespace orthant

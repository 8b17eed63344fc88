// How far results are apart.
#pragma once

#include <ATen/ATen.h>

#include <cmath>

namespace orthant {

/// |a - b| / |b|; 0 for equal ones, zeros among them; infinite where that is no number, so that no maximum loses it.
inline double relative_error(double a, double b) {
  if (a == b) return 0;
  const double error = std::abs(a - b) / std::abs(b);
  return std::isnan(error) ? INFINITY : error;
}
/// In the Euclidean norm.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  if (a.sizes() == b.sizes() && a.to(at::kDouble).equal(wide)) return 0;
  const double error = ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
  return std::isnan(error) ? INFINITY : error;
}

/// What a planted mistake must at least change for a check to count as seeing it, of itself: docs/numerics.md, "What a
/// check must catch".
inline constexpr double kSeenInAGradient = 1e-3, kSeenInALoss = 1e-4;
/// What a mean in place of a sum, a dropped sum over depth, or another rank's block changes the worst gradient by.
inline constexpr double kPlantedMistake = 0.5;

}  // namespace orthant

// Relative errors between results, and the smallest errors that a check must detect.
#pragma once

#include <ATen/ATen.h>

#include <cmath>

namespace orthant {

/// Returns |a - b| / |b|; 0 if a and b are equal, both zero included. If the quotient is NaN, it returns infinity, so
/// that a maximum keeps it.
inline double relative_error(double a, double b) {
  if (a == b) return 0;
  const double error = std::abs(a - b) / std::abs(b);
  return std::isnan(error) ? INFINITY : error;
}
/// The same in the Euclidean norm; infinity if NaN, and 0 for equal tensors.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  if (a.sizes() == b.sizes() && a.to(at::kDouble).equal(wide)) return 0;
  const double error = ((a.to(at::kDouble) - wide).norm() / wide.norm()).item<double>();
  return std::isnan(error) ? INFINITY : error;
}

/// Smallest relative change by which a planted mistake must show in a gradient or a loss: docs/derivations.md, "What a
/// check must catch".
inline constexpr double kSeenInAGradient = 1e-3, kSeenInALoss = 1e-4;
/// Relative change of the worst gradient that a check must still detect. Mistakes of this size are a mean in place of a
/// sum, a dropped sum over depth, and another rank's block.
inline constexpr double kPlantedMistake = 0.5;

}  // namespace orthant

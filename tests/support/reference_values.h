// The deterministic inputs of the sequence-parallel references, and the checksums of their golden tables.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>

namespace orthant {

/// Values in [-2, 2) that depend on the flat index and the seed, by two rounds of a 32-bit integer hash.
inline at::Tensor reference_values(at::IntArrayRef shape, uint32_t seed) {
  at::Tensor t = at::empty(shape, at::kDouble);
  double* out = t.mutable_data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) {
    uint32_t v = (static_cast<uint32_t>(i) + 1U) * 2654435761U + seed * 40503U;
    v ^= v >> 15;
    v *= 2246822519U;
    v ^= v >> 13;
    out[i] = 4 * (v / 4294967296.0 - 0.5);
  }
  return t;
}

/// Returns the sum, the sum weighted by (i mod 7) - 3, and the sum of squares, over the flat index i.
inline std::array<double, 3> checksums(const at::Tensor& t) {
  const at::Tensor flat = t.to(at::kDouble).contiguous().flatten();
  const at::Tensor weights = at::arange(flat.numel()).remainder(7).sub(3).to(at::kDouble);
  return {flat.sum().item<double>(), (flat * weights).sum().item<double>(), flat.square().sum().item<double>()};
}

}  // namespace orthant

// Compares the implementations of a fused kernel: on the same random inputs, every output may differ by roundings only.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "model/aten_kernels.h"
#include "model/device_kernels.h"
#include "model/element.h"
#include "tests/support/gpus.h"

namespace orthant::device_kernels {

using Tensors = std::vector<at::Tensor>;

// A device, and whether ATen's operators compute on it.
struct Backend {
  at::Device device = at::kCPU;
  bool aten = false;
};

#define RUN(place, function, ...) \
  ((place).aten ? aten_kernels::function((place).device, __VA_ARGS__) : function((place).device, __VA_ARGS__))

// Runs the kernel on copies of the tensors, by the CPU's kernels and at the place. Every tensor must then be equal
// within `tolerance`, relative to its largest finite element. Elements that are not finite must be the same.
inline void expect_equal(const Backend& place, const Tensors& tensors, double tolerance, const std::string& what,
                         const std::function<void(const Backend&, const Tensors&)>& kernel) {
  Tensors want, have;
  for (const at::Tensor& t : tensors) {
    want.push_back(t.clone());
    have.push_back(t.to(place.device, t.scalar_type(), false, /*copy=*/true));
  }
  kernel({}, want);
  kernel(place, have);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (want[i].numel() == 0) continue;
    const at::Tensor w = want[i].to(at::kDouble), h = have[i].cpu().to(at::kDouble);
    const double size = std::max(w.abs().nan_to_num(0, 0).max().item<double>(), 1e-30);
    const at::Tensor same = h.eq(w).logical_or_(h.isnan().logical_and_(w.isnan()));
    const double error = (h - w).abs().masked_fill_(same, 0).max().item<double>() / size;
    EXPECT_TRUE(error <= tolerance) << what << ": tensor " << i << " differs by " << error << ", bound " << tolerance;
  }
}

inline double tolerance_of(at::ScalarType type) {
  return type == at::kDouble ? 1e-13 : type == at::kFloat ? 2e-6 : 0.008;
}

inline constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16};

inline at::Tensor random(at::IntArrayRef shape, at::ScalarType type) { return at::randn(shape, at::kDouble).to(type); }

/// The backends that are compared with the CPU's kernels on a machine with a GPU.
inline const Backend kOnGpu[] = {{.device = at::Device(at::kCUDA, 0), .aten = true},
                                 {.device = at::Device(at::kCUDA, 0), .aten = false}};

}  // namespace orthant::device_kernels

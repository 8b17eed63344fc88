// Biases start at zero, where a mistake about what they add would not show: drawn ones, for tests.
#pragma once

#include "model/weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace orthant {

/// The same numbers wherever a part of them is held. Weights are of all stages' parameters, in the model's order.
inline void draw_biases(Weights& weights) {
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    const ParameterInfo& info = weights.parameters()[p];
    if (!info.is_bias()) continue;
    const at::Generator generator = at::detail::createCPUGenerator(1000 + p);
    weights.master(p).copy_(shard_of(info, 0.3 * at::randn(info.shape, generator, at::kDouble)));
  }
  weights.publish();
}

}  // namespace orthant

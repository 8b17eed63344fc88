// Random biases for tests. A model's biases start at zero, where an error in adding them would not show.
#pragma once

#include "model/weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace orthant {

/// Draws the same unsharded values on every mesh and keeps the rank's shards. `weights` must have the parameters of all
/// stages, in the model's order.
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

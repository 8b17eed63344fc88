// Random biases and gains of heads for tests. Biases start at zero and gains at one, where an error in using them would
// not show.
#pragma once

#include "model/weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace orthant {

/// Draws the same unsharded values, gains around 1, on every mesh and keeps the rank's shards. `weights` must have the
/// parameters of all stages, in the model's order.
inline void draw_biases(Weights& weights) {
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    const ParameterInfo& info = weights.parameters()[p];
    const bool gain = info.role == ParameterRole::head_gain;
    if (!info.is_bias() && !gain) continue;
    const at::Generator generator = at::detail::createCPUGenerator(1000 + p);
    const at::Tensor drawn = 0.3 * at::randn(info.shape, generator, at::kDouble);
    weights.master(p).copy_(shard_of(info, gain ? drawn + 1 : drawn));
  }
  weights.publish();
}

}  // namespace orthant

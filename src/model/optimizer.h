// AdamW and gradient clipping over the flat buffers of Weights.
#pragma once

#include "model/weights.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace orthant {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // applies to matrices; vectors (norm gains, biases) never decay
};

/// AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101). Keeps two moments per element in the masters' dtype.
class Optimizer {
 public:
  Optimizer(Weights& weights, AdamWOptions options);

  /// Updates masters and working values with the gradients times gradient_scale. `step` counts from 1.
  void step(int64_t step, double lr, double gradient_scale);

  at::Tensor first_moments() const { return m_; }
  at::Tensor second_moments() const { return v_; }

 private:
  Weights& weights_;
  AdamWOptions options_;
  at::Tensor m_, v_;
};

/// The sum of squares of this rank's shard of a parameter's gradient, in float64. The order of the sum depends only on
/// the elements' positions, never on the number of threads.
double sum_gradient_squares(const Weights& weights, size_t parameter);
/// The factor that reduces a norm to max_norm, as in torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
/// It is 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace orthant

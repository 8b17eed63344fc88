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
  double weight_decay = 0.1;  // of matrices; vectors (norm gains, biases) never decay
};

/// Loshchilov and Hutter 2019 (arXiv 1711.05101). Two moments in the masters' dtype, elementwise.
class Optimizer {
 public:
  Optimizer(Weights& weights, AdamWOptions options);

  /// One update with gradients times gradient_scale; writes masters and working values. step counts from 1.
  void step(int64_t step, double lr, double gradient_scale);

  at::Tensor first_moments() const { return m_; }
  at::Tensor second_moments() const { return v_; }

 private:
  Weights& weights_;
  AdamWOptions options_;
  at::Tensor m_, v_;
};

/// Sum of the squares of a parameter's gradient, of what is held of it, in float64 in an order that depends on nothing
/// but positions.
double gradient_squares(const Weights& weights, size_t parameter);
/// Factor that brings a norm down to max_norm, as torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6));
/// 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

}  // namespace orthant

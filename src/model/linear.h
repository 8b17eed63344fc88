// The matrix product of a linear layer and its two gradients, weight gradients added straight into their buffers.
#pragma once

#include "model/weights.h"

#include <ATen/core/Tensor.h>

namespace orthant {

/// x W^T, [..., C] x [O, C] -> [..., O], under autograd. Backward gives the input's gradient and adds the weight's.
at::Tensor linear(const at::Tensor& x, const Weight& weight);

/// weight.gradient (+)= dy^T x, dy [N, O], x [N, C]; the first of a step overwrites. bfloat16 products are accumulated
/// in float32 without a rounding between: MKL's bf16 x bf16 -> f32 where the wheel has it.
void add_weight_gradient(const Weight& weight, const at::Tensor& dy_NO, const at::Tensor& x_NC);

}  // namespace orthant

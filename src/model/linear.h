// The matrix product of a linear layer and its gradients, those of weights added straight into their buffers.
#pragma once

#include "model/weights.h"

#include <ATen/core/Tensor.h>

namespace orthant {

/// x W^T + b, [..., C] x [O, C] -> [..., O], under autograd. Backward gives the input's gradient and adds the weight's
/// and its bias'.
at::Tensor linear(const at::Tensor& x, const Weight& weight);

/// sum [N, O] (+)= a [N, C] b [C, O], in the sum's precision: where that is float32 and the operands are bfloat16,
/// without a rounding between, by MKL's bf16 x bf16 -> f32 where the wheel has it. Overwrites unless `add`.
void add_product(at::Tensor sum_NO, const at::Tensor& a_NC, const at::Tensor& b_CO, bool add);

/// weight.gradient (+)= dy^T x, dy [N, O], x [N, C]; the first of a step overwrites.
void add_weight_gradient(const Weight& weight, const at::Tensor& dy_NO, const at::Tensor& x_NC);

/// The share of the weight's bias, if it has one (Weight::add_share()): bias.gradient (+)= the sum of dy's rows.
void add_bias_share(const Weight& weight, const at::Tensor& dy_NO);

}  // namespace orthant

// The matrix product of a linear layer and its gradients. Weight gradients are added directly to their buffers, so
// autograd never holds one.
#pragma once

#include "model/weights.h"

#include <ATen/core/Tensor.h>

namespace orthant {

/// x W^T + b under autograd, [..., C] x [O, C] -> [..., O]. Backward returns the gradient of x and accumulates those of
/// the weight and its bias.
at::Tensor linear(const at::Tensor& x, const Weight& weight);
/// That backward alone, for a gradient dy [..., O] of the product: returns the gradient of x.
at::Tensor linear_backward(const at::Tensor& x, const Weight& weight, const at::Tensor& dy);

/// a b (+ bias in each row), [N, C] x [C, O] -> [N, O], in the operands' dtype, without a record for autograd. On x86
/// CPUs without AVX-512, oneDNN does not multiply bfloat16; the product is then made by blocks.
at::Tensor matrix_product(const at::Tensor& a_NC, const at::Tensor& b_CO, const at::Tensor& bias_O = {});
/// Writes the product a b to y.
void write_product(at::Tensor y_NO, const at::Tensor& a_NC, const at::Tensor& b_CO);
/// Writes a b (+ bias) to y, block by block. Each block is summed in a float32 buffer of at most 1 MiB.
void write_product_by_blocks(const at::Tensor& y_NO, const at::Tensor& a_NC, const at::Tensor& b_CO,
                             const at::Tensor& bias_O = {});

/// sum[rows[i]] += addends[i] for every i, in one order on every device: index_add_() has none on CUDA.
void add_to_rows(const at::Tensor& sum, const at::Tensor& rows, const at::Tensor& addends);

/// sum [N, O] = a [N, C] b [C, O], or sum += a b if `add`. The product is never rounded below the precision of sum. For
/// bfloat16 operands and a float32 sum, a CPU with AMX uses MKL's bf16 x bf16 -> f32 product if the PyTorch wheel
/// contains it; other CPUs convert the operands of large products to float32, in parts.
void add_product(at::Tensor sum_NO, const at::Tensor& a_NC, const at::Tensor& b_CO, bool add);

/// weight.gradient (+)= dy^T x for dy [N, O] and x [N, C]. The first call of a step overwrites.
void add_weight_gradient(const Weight& weight, const at::Tensor& dy_NO, const at::Tensor& x_NC);

/// bias.gradient (+)= the sum of dy's rows, if the weight has a bias; scheduled by Weight::add_weight_product().
void accumulate_bias(const Weight& weight, const at::Tensor& dy_NO);

}  // namespace orthant

// The exchange of key heads between columns, as key_heads_plan.h describes it: after the product that makes queries,
// keys and values, and before the backward of that product.
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/tensor/key_heads_plan.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// Both functions return their argument if columns divide the key heads. Neither is under autograd.
/// receive_key_heads: from the column's rows of queries, keys and values [B,T,P] to the heads of its attention
/// [B,T,(H+2K)D]. return_key_heads: from the gradient of the latter to that of the former, the sum over all columns
/// that read the rows, in float32 or float64.
at::Tensor receive_key_heads(const TensorMesh& mesh, const AttentionHeads& all, const at::Tensor& rows_BTP);
at::Tensor return_key_heads(const TensorMesh& mesh, const AttentionHeads& all, const at::Tensor& gradient_BTC);

}  // namespace orthant

// The layers of a transformer on a tensor mesh, under autograd: no rank holds their full weights or widths. Callers
// pass the unsharded sizes of each weight. traffic_plan.h counts the bytes of all layers; volume_plan.h has the
// formulas for linear layers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>

#include "model/primitives.h"
#include "parallel/tensor/key_heads_plan.h"
#include "parallel/tensor/slice_mesh.h"

namespace orthant {

/// Unsharded sizes of a weight [out, in], and the operand that stays in place: output is column-parallel, input is
/// row-parallel.
struct UnshardedWeight {
  int64_t out = 0, in = 0;
  Stationary stationary = Stationary::output;
  AttentionHeads heads = {};  // of the attention that reads its output; no heads for other weights
};

/// x W^T + b, where b is sharded like the width of the result. Output-stationary (column-parallel): from the stream
/// [B,T,C] to this column's [B,T,O_j], and for queries, keys and values to the heads of its attention
/// (key_heads.h). Input-stationary (row-parallel): from this column's [B,T,C_j] to the stream.
/// Gathered operands are freed and gathered again in backward, and in a split backward once in Action I and once in
/// Action W. The gradients of biases and gains are sums over this rank's tokens only.
at::Tensor tensor_linear(const TensorMesh& mesh, const at::Tensor& x, const Weight& weight,
                         const UnshardedWeight& unsharded);

/// The backward of tensor_linear() alone, for the gradient dy of its output: returns the gradient of x.
at::Tensor tensor_linear_backward(const TensorMesh& mesh, const at::Tensor& x, const Weight& weight,
                                  const UnshardedWeight& unsharded, const at::Tensor& dy);

/// Looks up rows of the table [V,C], which is sharded as an output-stationary weight: from tokens [B,T] to the stream.
/// Each column looks up the tokens of its part of the vocabulary; the sum over columns is the embedding. What moves
/// over rows is an EmbeddingMove.
at::Tensor tensor_embedding(const SliceMesh& mesh, const at::Tensor& tokens_BT, const Weight& table,
                            int64_t vocabulary);

/// A norm of model/norms.h of input + residual over the full width of a stream that columns shard. Forward all-reduces
/// Operation::statistics numbers a token over columns, one after the other. Backward all-reduces as many at once.
std::pair<at::Tensor, at::Tensor> tensor_add_norm(const TensorMesh& mesh, const std::string& function,
                                                  const at::Tensor& input_BTC, const at::Tensor& residual_BTC,
                                                  const Weight& gain, double eps, int64_t width);

/// Cross-entropy over a vocabulary that columns shard (Megatron-LM, section 3). Three numbers a token, or four with
/// label smoothing, are gathered over columns (24 or 32 bytes); logits are never gathered. The loss is the same on all
/// columns. The incoming gradient of the loss must be 1; otherwise LogicError.
at::Tensor tensor_cross_entropy(const TensorMesh& mesh, const at::Tensor& x_BTC, const Weight& head,
                                const UnshardedWeight& unsharded, const Microbatch& batch, const OutputLoss& loss);

}  // namespace orthant

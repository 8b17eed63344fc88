// The layers of a transformer whose weights and widths no rank holds whole, under autograd. Each is given the whole
// sizes of its weight; what it sends stands in traffic_plan.h, and of linear layers by formula in words_plan.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "model/primitives.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// A weight [out, in] as it is on one device, and which way it is cut.
struct TensorWeight {
  int64_t out = 0, in = 0;
  Stationary stays = Stationary::output;
};

/// x W^T + b; b is cut as the result's width. Output-stationary: from the stream [B,T,C] to this column's [B,T,O_j].
/// Input-stationary: from this column's [B,T,C_j] to the stream. Nothing gathered is kept: backward gathers it again,
/// and a split backward once in Action I and once in Action W. The bias' gradient is the sum over the tokens that are
/// here, as a gain's.
at::Tensor tensor_linear(const TensorMesh& mesh, const at::Tensor& x, const Weight& weight, const TensorWeight& whole);

/// Rows of the table [V,C], cut as an output-stationary weight: [B,T] -> the stream. Each column looks up the tokens of
/// its part of the vocabulary; the sum of all is the row.
at::Tensor tensor_embedding(const TensorMesh& mesh, const at::Tensor& tokens_BT, const Weight& table,
                            const TensorWeight& whole);

/// RMS norm of input + residual over the whole width of a stream of which a rank holds a part: one number a token is
/// summed over columns, forward and backward.
std::pair<at::Tensor, at::Tensor> tensor_add_norm(const TensorMesh& mesh, const at::Tensor& input_BTC,
                                                  const at::Tensor& residual_BTC, const Weight& gain, double eps,
                                                  int64_t width);

/// Cross-entropy over a vocabulary of which each column has a part (Megatron-LM, section 3): three numbers a token, or
/// four with smoothing, are gathered over columns (24 or 32 bytes), logits never. The same value on all columns; its
/// gradient must be 1.
at::Tensor tensor_cross_entropy(const TensorMesh& mesh, const at::Tensor& x_BTC, const Weight& head,
                                const TensorWeight& whole, const Microbatch& batch, const OutputLoss& loss);

}  // namespace orthant

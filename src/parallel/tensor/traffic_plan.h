// Messages that a rank sends under tensor parallelism, exact in bytes: the redistributions that the layers make, in
// their order.
#pragma once

#include <cstdint>
#include <vector>

#include "mesh/collective.h"
#include "mesh/mesh.h"
#include "model/recompute_plan.h"
#include "parallel/tensor/volume_plan.h"

namespace orthant {

/// An operation of a block on one column: the elements of a token's input and output that the column has. Where the
/// input or output is the residual stream, the size is that of the stream's full width.
struct ColumnOperation {
  Operation operation;
  int64_t in = 0, out = 0;
  int64_t product_out = 0;  // of a product's own output, before columns exchange key heads (see key_heads_plan.h)
  int64_t statistics = 0;  // numbers of each token that it keeps for backward; of the column's heads, if it is local
};
/// The operations as the column carries them out. A fused product has the column's rows of each of its matrices.
std::vector<ColumnOperation> column_operations(const std::vector<Operation>& block, const TensorPlan& plan, int column);

/// Sizes of one microbatch on one rank, and of the model.
struct TensorShape {
  int64_t sequences = 0, tokens = 0;  // tokens of each sequence, before columns shard the stream
  int64_t hidden = 0, vocabulary = 0;
  std::vector<ColumnOperation> block = {};
  std::vector<RecomputedRange> recomputed = {};  // of a block that recomputes
  int64_t loss_chunk = 0;      // tokens whose logits are in memory at a time
  int64_t norm_statistics = 1;  // numbers of each token that a norm over the stream keeps, and sums over columns
  int loss_statistics = 3;     // float64 numbers of each token that a column sends to the other columns
  int element_bytes = 4, sum_bytes = 4;  // of activations; of statistics and of weight gradients
  bool on_gpu = false, over_nccl = false;
};

/// Messages of one transformer block, of the embedding, and of the last norm with the loss.
struct TensorTraffic {
  std::vector<Messages> block_forward, block_backward;
  std::vector<Messages> block_split;  // in addition to block_backward, if backward is split into I and W
  std::vector<Messages> block_repeated;  // of the operations that a block which recomputes repeats in backward
  std::vector<Messages> embedding_forward, embedding_backward;
  std::vector<Messages> loss_forward, loss_backward;  // forward of the loss also makes its gradient

  auto operator<=>(const TensorTraffic&) const = default;
};

/// Messages of the rank for one microbatch. Axes of one rank send nothing. The mesh must have the axes kColumn and
/// kRow.
TensorTraffic tensor_traffic(const TensorPlan& plan, const TensorShape& shape, const Mesh& mesh, int rank);

}  // namespace orthant

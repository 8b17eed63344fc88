// What a rank sends under tensor parallelism, to the byte: the moves that the layers make, in their order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "parallel/tensor/words_plan.h"

namespace orthant {

/// One microbatch on one rank, and the model's sizes. Rows of fused weights are those of its column.
struct TensorShape {
  int64_t sequences = 0, tokens = 0;  // of each sequence, before the stream is cut over columns
  int64_t hidden = 0, vocabulary = 0;
  int64_t qkv_rows = 0;        // of this column
  int64_t gate_up_rows = 0;    // of this column
  int64_t attention = 0;       // H D, whole
  int64_t intermediate = 0;    // whole
  int64_t loss_chunk = 0;      // tokens whose logits are held at a time
  int loss_statistics = 3;     // float64 that a column says of each of them
  int element_bytes = 4, sum_bytes = 4;  // of activations; of statistics and of weight gradients
};

/// Messages of one kind: how many calls of the collective, and the bytes that the rank sends for them.
struct TensorMessages {
  std::string what, collective, axis;
  int64_t calls = 0, bytes = 0;
};

/// Of one block, of the embedding before all blocks, and of the last norm and the loss behind them.
struct TensorTraffic {
  std::vector<TensorMessages> block_forward, block_backward;
  std::vector<TensorMessages> block_split;  // more than that, where backward is split into I and W
  std::vector<TensorMessages> embedding_forward, embedding_backward;
  std::vector<TensorMessages> loss_forward, loss_backward;  // the loss makes its gradient on the way forward
};

/// Of the rank; only axes of more than one rank send. The mesh has the axes of kColumn and kRow.
TensorTraffic tensor_traffic(const TensorPlan& plan, const TensorShape& shape, const Mesh& mesh, int rank);

}  // namespace orthant

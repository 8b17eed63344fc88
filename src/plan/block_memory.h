// Counts the bytes that a transformer block keeps of one microbatch on a rank, and the peaks of its temporary tensors.
// The code follows the passes of the block step by step, as they allocate and free memory. One device is a mesh of one
// row and one column.
#pragma once

#include <cstdint>
#include <vector>

#include "model/recompute_plan.h"
#include "parallel/tensor/memory_plan.h"
#include "plan/sharding.h"

namespace orthant {

/// Bytes of one block for one microbatch on one rank.
struct BlockMemory {
  int64_t kept = 0;         // from F to B or I, the block's input included
  int64_t host = 0;         // the same in host memory, if it is offloaded; `kept` is then 0
  int64_t for_weights = 0;  // from I to W: inputs of its products and gradients of their outputs
  /// Peaks of temporaries in forward and in W. Forward: in addition to everything kept at its end. W: in addition to
  /// everything kept at its beginning, for_weights included.
  int64_t forward = 0, weights = 0;
  /// Peaks of temporaries in B (`both`) and I (`for_input`). `backward_held` is for the last block of a stage that has
  /// received its gradient as a message, which stays until the stage is done. `backward` is for all other blocks.
  struct Backward {
    int64_t both = 0, for_input = 0;
    auto operator<=>(const Backward&) const = default;
  };
  Backward backward, backward_held;

  auto operator<=>(const BlockMemory&) const = default;
};

/// Bytes of tensors in a block. `stream`: this rank's shard of the residual stream; `row`: one element of every token;
/// `all_tokens_statistic`: one statistic of every token; `shard_statistic`: one statistic of each token in this rank's
/// shard of the stream; `attention`: what attention keeps.
struct BlockSizes {
  int64_t stream = 0, row = 0, all_tokens_statistic = 0, shard_statistic = 0, attention = 0;

  /// Bytes of the input of an operation, and of the statistics that it keeps.
  int64_t input_of(const ColumnOperation& own) const {
    return own.operation.reads_stream() ? stream : row * own.in;
  }
  int64_t statistics_of(const ColumnOperation& own) const {
    return own.statistics * (own.operation.kind == OperationKind::local ? all_tokens_statistic : shard_statistic);
  }
};
/// Returns the bytes that a block keeps from forward to backward, its input included. It keeps only the input of
/// a recomputed range.
int64_t block_bytes(const std::vector<ColumnOperation>& block, const BlockSizes& sizes,
                    const std::vector<RecomputedRange>& recomputed);

/// Sizes of the tensors of a block for a microbatch on a rank; all sizes of tensors are in bytes.
struct BlockTensors {
  /// One operation: the bytes of its input and output on this rank, and of the statistics that it keeps.
  struct Step {
    OperationKind kind;
    bool to_stream;
    int64_t in, out;
    int64_t product_out = 0;  // of a linear operation, before columns exchange key heads
    int64_t statistics = 0;
    ProductBytes product = {};  // of a linear operation
  };

  TensorShape shape;
  ProductMemory product;
  SequenceMemory attention;
  BlockSizes sizes;
  std::vector<Step> steps;
  bool shards_sequences = false, has_dropout = false;
};
BlockTensors block_tensors(const Sharding& plan, int rank, int64_t sequences);

/// Returns the bytes of a block that recomputes these ranges.
BlockMemory block_memory(const BlockTensors& block, const std::vector<RecomputedRange>& recomputed);

}  // namespace orthant

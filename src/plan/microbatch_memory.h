// Counts the bytes that one microbatch keeps on a rank, and the peaks of its temporary tensors. The code follows the
// passes of a block step by step, as they allocate and free memory. One device is a mesh of one row and one column.
#pragma once

#include <vector>

#include "plan/pipeline.h"
#include "plan/vocabulary_memory.h"
#include "schedule/row_memory.h"

namespace orthant {

/// Bytes of one microbatch on one rank.
struct MicrobatchMemory {
  int64_t boundary = 0;     // the residual stream between two blocks
  int64_t block = 0;        // kept by a block from F to B or I, its input included
  int64_t for_weights = 0;  // kept by a block from I to W: inputs of its products and gradients of their outputs
  int64_t head = 0;         // kept by the last norm and the loss, the residual stream included
  int64_t batch = 0;        // tokens, labels and positions
  VocabularyMemory vocabulary = {};
  /// Peaks of temporaries in a block's forward, in the loss and in W. Forward and loss: in addition to everything kept
  /// at their end. W: in addition to everything kept at its beginning, for_weights included.
  int64_t forward = 0, loss = 0, weights = 0;
  /// Peaks in the embedding's passes, in addition to everything kept and to `batch`: at that time no block of this
  /// microbatch keeps anything. The gradient that the backward reads comes on top.
  int64_t embedding_forward = 0, embedding_backward = 0;
  /// Peaks of temporaries in a block's B (`whole`) and I (`for_input`). In `backward`, the block that reads the stage's
  /// incoming gradient frees it. In `backward_held` that gradient, a message, stays until the stage is done.
  struct Backward {
    int64_t whole = 0, for_input = 0;
  };
  Backward backward, backward_held;
};

/// Returns the bytes of a microbatch of `sequences` sequences on the rank.
MicrobatchMemory microbatch_memory(const Sharding& plan, int rank, int64_t sequences);

/// Bytes of tensors in a block. `stream`: this rank's shard of the residual stream; `row`: one element of every token;
/// `all_tokens_statistic`: one statistic of every token; `shard_statistic`: one statistic of each token in this rank's
/// shard of the stream; `attention`: what attention keeps.
struct BlockSizes {
  int64_t stream = 0, row = 0, all_tokens_statistic = 0, shard_statistic = 0, attention = 0;

  /// Bytes of the statistics that an operation keeps.
  int64_t statistics_of(const ColumnOperation& own) const {
    return own.statistics * (own.operation.kind == OperationKind::local ? all_tokens_statistic : shard_statistic);
  }
};
/// Returns the bytes that a block keeps from forward to backward, its input included.
int64_t block_bytes(const std::vector<ColumnOperation>& block, const BlockSizes& sizes);

/// Returns the bytes that a stage takes for the microbatch. For the microbatch that completes the stage's gradients,
/// `begun` is the result of GradientStaging::of(): other ranks' partial sums, by the layer whose backward starts their
/// reduction. They are held to the end of the row. For every other microbatch `begun` is empty.
MicrobatchBytes microbatch_bytes(const MicrobatchMemory& memory, const Stage& stage, bool dropout,
                     const std::vector<int64_t>& begun);

}  // namespace orthant

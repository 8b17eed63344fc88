// What a microbatch keeps and needs for a while on a rank: the passes of a block one after the other, as they take
// memory and give it back. One device is a mesh of one row and one column.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/vocabulary_memory.h"
#include "schedule/row_memory.h"

namespace orthant {

/// Bytes of one microbatch on one rank.
struct MicrobatchMemory {
  int64_t boundary = 0;     // the residual stream between two blocks
  int64_t block = 0;        // kept by a block from F to B or I, its input among it
  int64_t for_weights = 0;  // what is left of a block from I to W: inputs and outputs' gradients of its products
  int64_t head = 0;         // kept by the last norm and the loss, the stream among it
  int64_t batch = 0;        // tokens, labels, positions
  VocabularyMemory vocabulary = {};
  /// The most beside everything kept, where a block's forward ends and in the loss; and beside what a block has left
  /// for W, in W.
  int64_t forward = 0, loss = 0, weights = 0;
  int64_t embedding_forward = 0, embedding_backward = 0;  // beside everything kept but the microbatch; and that too
  /// The same in a block's B and I. The gradient that a stage reads goes with the block that reads it, or is held until
  /// the whole stage is done: a message's is.
  struct Backward {
    int64_t whole = 0, for_input = 0;
  };
  Backward backward, backward_held;
};

/// Of so many sequences on the rank.
MicrobatchMemory microbatch_memory(const Plan& plan, int rank, int64_t sequences);

/// Kept by a block, its input among it: what its norms, its MLP and its attention keep of a stream of so many bytes.
int64_t block_bytes(int64_t stream, int64_t gate_up, int64_t statistic, int64_t attention);

/// What a stage takes of it. `begun`: of the microbatch that completes gradients, others' summands of the sums that
/// each layer's backward begins (gradient_staging.h), and that are there to the end; of another, nothing.
MicrobatchBytes microbatch_bytes(const MicrobatchMemory& memory, const Stage& stage, bool dropout,
                     const std::vector<int64_t>& begun);

}  // namespace orthant

// Counts the bytes that one microbatch keeps on a rank, and the peaks of its temporary tensors, from the bytes of its
// blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/block_memory.h"
#include "plan/pipeline.h"
#include "plan/vocabulary_memory.h"
#include "schedule/row_memory.h"

namespace orthant {

/// Bytes of one microbatch on one rank.
struct MicrobatchMemory {
  int64_t boundary = 0;     // the residual stream between two blocks
  int64_t head = 0;         // kept by the last norm and the loss, the residual stream included
  int64_t batch = 0;        // tokens, labels and positions
  VocabularyMemory vocabulary = {};
  Recomputation recompute = {};
  BlockMemory keeping, recomputing;  // of the two kinds of blocks; equal if no block recomputes
  int64_t loss = 0;  // peak of temporaries in the loss, in addition to everything kept at its end
  /// Peaks in the embedding's passes, in addition to everything kept and to `batch`: at that time no block of this
  /// microbatch keeps anything. The gradient that the backward reads comes on top.
  int64_t embedding_forward = 0, embedding_backward = 0;
  /// The embedding's rows, which the first stage keeps until backward if the vocabulary is sharded and the first block
  /// reads another tensor: their sum with learned positions, or what dropout makes of them.
  int64_t embedding_kept = 0;

  const BlockMemory& block(int64_t layer) const { return recompute.applies_to(layer) ? recomputing : keeping; }
  auto operator<=>(const MicrobatchMemory&) const = default;
};

/// Returns the bytes of a microbatch of `sequences` sequences on the rank.
MicrobatchMemory microbatch_memory(const Sharding& plan, int rank, int64_t sequences);

/// Returns the bytes that a stage takes for the microbatch. For the microbatch that completes the stage's gradients,
/// `begun` has other ranks' partial sums, by the layer whose backward starts their
/// reduction. They are held to the end of the row. For every other microbatch `begun` is empty.
MicrobatchBytes microbatch_bytes(const MicrobatchMemory& memory, const Stage& stage, bool dropout,
                                 const std::vector<int64_t>& begun);

}  // namespace orthant

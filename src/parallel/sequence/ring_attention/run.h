// Ring attention: keys and values go round a ring in blocks; each rank attends from its queries to the block that is
// here while the next is on its way, and merges by log-sum-exp. No rank ever holds a row of scores.
//
// Liu, Zaharia, Abbeel 2023, "Ring Attention with Blockwise Transformers" (arXiv 2310.01889); balanced under a causal
// mask by zigzag or stripes (see placement_plan.h). Backward: sums of dK and dV follow their block, one step behind.
// Bytes a rank and layer, n ranks, X elements of K in a block: forward 2(n-1)X e; backward 2(n-1)X (e + e_sum), where
// sums are float32 (float64 for float64).
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {

struct RingAttentionOptions {
  SequencePlacement placement = SequencePlacement::zigzag;
  /// Ranks of a window of the double ring; 0: one ring.
  int window = 0;
  AttentionKernel kernel = AttentionKernel::flash;
};

/// The core on the ranks of the axes, each with the tokens at ring_places(). Output and log-sum-exp of all blocks are
/// merged in float32 or better, and so are dQ, dK and dV. The Comm must outlive it.
AttentionCore ring_attention(Comm& comm, Axes axes, RingAttentionOptions options);

}  // namespace orthant

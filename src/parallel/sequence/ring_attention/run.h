// Ring attention: blocks of keys and values travel round a ring. Each rank computes attention of its queries to the
// present block while it receives the next one, and merges the results by log-sum-exp. No rank holds a row of scores.
// parallel/sequence/ring.h shows the loop in ten lines.
//
// Liu, Zaharia, Abbeel 2023, "Ring Attention with Blockwise Transformers" (arXiv 2310.01889); balanced under a causal
// mask by zigzag or stripe (see placement_plan.h). In backward, sums of dK and dV follow their block one step later.
// Bytes sent by a rank for one layer, with n ranks and X elements of K in a block: forward 2(n-1)X e; backward
// 2(n-1)X (e + e_sum). e is the bytes of an element, e_sum those of a sum: float32, or float64 for float64.
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {

struct RingAttentionOptions {
  SequencePlacement placement = SequencePlacement::zigzag;
  /// Ranks in one window of the double ring; must divide the ring. 0: a single ring.
  int window = 0;
  AttentionKernel kernel = AttentionKernel::flash;
};

/// The core on the ranks of the axes; each rank has the tokens at its ring_positions(). Output and log-sum-exp over
/// blocks are merged in float32 or float64, and dQ, dK and dV are summed in it. The Comm must outlive the core.
AttentionCore ring_attention(Comm& comm, Axes axes, RingAttentionOptions options);

}  // namespace orthant

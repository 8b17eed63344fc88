// Ring self-attention: one ring for keys, then one for values. Each rank keeps the full rows of scores of its queries,
// so the softmax is an ordinary one. These rows are its cost in memory.
//
// Li, Xue, Baranwal, Li, You 2021, "Sequence Parallelism: Long Sequence Training from System Perspective" (arXiv
// 2105.13120), section 3. Bytes sent by a rank for one layer, with n ranks and X elements of K in a block:
//   forward   2(n-1)X e
//   backward  2(n-1)X e + 4(n-1)X e_sum with the paper's all-reduces of dK and dV,
//             2(n-1)X (e + e_sum) where sums of dK and dV travel with their blocks instead.
// e is the bytes of an element, e_sum those of a sum: float32, or float64 for float64. Memory: B H (L/n) L
// probabilities are kept. Scores of keys that no query attends to are not computed.
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {

struct RingSelfAttentionOptions {
  SequencePlacement placement = SequencePlacement::contiguous;
  /// The paper's backward: every rank forms dK and dV of the full sequence, all-reduces them and keeps its own part.
  bool all_reduce = false;
};

/// The core on the ranks of the axes; each rank has the tokens at its ring_positions(). The Comm must outlive the core.
AttentionCore ring_self_attention(Comm& comm, Axes axes, RingSelfAttentionOptions options);

}  // namespace orthant

// Ring self-attention: two rings, one for keys and one for values. Each rank keeps the full row of scores of its
// queries, so softmax is an ordinary one; the row is what it costs.
//
// Li, Xue, Baranwal, Li, You 2021, "Sequence Parallelism: Long Sequence Training from System Perspective" (arXiv
// 2105.13120), section 3. Bytes a rank and layer, n ranks, X elements of K in a block of e bytes, sums of e_sum
// (float32, float64 for float64): forward 2(n-1)X e; backward 2(n-1)X e + 4(n-1)X e_sum with the paper's all-reduces,
// 2(n-1)X (e + e_sum) where sums of dK and dV travel with their blocks instead. Memory: B H (L/n) L probabilities kept.
// What no query sees is not computed.
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {

struct RingSelfAttentionOptions {
  SequencePlacement placement = SequencePlacement::contiguous;
  /// The paper's form: dK and dV of the whole sequence on every rank, all-reduced, of which each keeps its part.
  bool all_reduce = false;
};

/// The core on the ranks of the axes, each with the tokens at ring_places(). The Comm must outlive it.
AttentionCore ring_self_attention(Comm& comm, Axes axes, RingSelfAttentionOptions options);

}  // namespace orthant

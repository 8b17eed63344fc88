// Ulysses: an all-to-all turns shards of tokens into shards of heads, so that each rank computes attention of some
// heads over all tokens of its group. A second all-to-all turns the output back into shards of tokens.
//
// Jacobs et al. 2023, "DeepSpeed Ulysses" (arXiv 2309.14509), section 3. Bytes sent by a rank for one layer's forward:
// (U-1)/U B (L/N) e (2d + 2d_kv), with q, k and v in one all-to-all; backward sends the same. Here U Ulysses ranks, N
// ranks with the ring, e bytes an element, B sequences of L tokens. d and d_kv are the elements of a token's query
// heads and key heads. With fewer key heads than ranks the bytes grow, because each key head goes to several ranks.
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {

/// The positions of the group's tokens: ring_positions(placement, seq_len, ring, r), sharded over the group in order.
struct UlyssesCoordinates {
  SequencePlacement placement = SequencePlacement::contiguous;
  int ring = 1, r = 0;
};

/// The Ulysses core over the axes. `inner` computes attention of this rank's heads over the group's tokens:
/// local_attention() if these are whole sequences (ring of 1), ring_attention() for USP (Fang and Zhao 2024, arXiv
/// 2405.07719, section 3). The Comm must outlive the core.
AttentionCore ulysses(Comm& comm, Axes axes, UlyssesCoordinates place, AttentionCore inner);

}  // namespace orthant

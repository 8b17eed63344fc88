// Ulysses: an all-to-all turns shards of tokens into shards of heads, so that each rank attends with some heads to all
// tokens of its group; another turns the output back.
//
// Jacobs et al. 2023, "DeepSpeed Ulysses" (arXiv 2309.14509), section 3. Bytes a rank and layer, U ranks, N with the
// ring, e bytes an element, B sequences of L tokens, d elements of a token's query heads, d_kv of its key heads:
// forward (U-1)/U B (L/N) e (2d + 2d_kv), with q, k and v in one all-to-all; backward the same; more where key heads
// are fewer than ranks and go to several.
#pragma once

#include "comm/comm.h"
#include "model/attention_core.h"
#include "parallel/sequence/placement_plan.h"

namespace orthant {

/// Where the group's tokens are in their sequences: at ring_places(placement, ., ring, r), cut in order.
struct UlyssesPlace {
  SequencePlacement placement = SequencePlacement::contiguous;
  int ring = 1, r = 0;
};

/// The core over the axes around one that attends with this rank's heads to the group's tokens: local_attention() where
/// they are whole sequences (ring 1), ring_attention() for USP (Fang and Zhao 2024, arXiv 2405.07719, section 3). The
/// Comm must outlive it.
AttentionCore ulysses(Comm& comm, Axes axes, UlyssesPlace place, AttentionCore inner);

}  // namespace orthant

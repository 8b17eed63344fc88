// Interleaved 1F1B: every rank has v stages, assigned round-robin, so a microbatch visits each rank v times.
// Megatron-LM, Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
//
// On p ranks with m microbatches, where the stages of a rank together take f, b and w: the bubble is (p-1)(f+b+w)/v.
// Rank r holds the activations of min(mv, 2(p-1-r) + (v-1)p + 1) stages. There are 2m(pv-1) messages, compared with
// 2m(p-1) in 1F1B, each of the same size. Microbatches run in groups of p. The paper requires p to divide m. Here the
// last group may be incomplete: it runs as a full group without the missing microbatches.
//
// Example, p = 2, v = 2, m = 2:
//   rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
//   rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// `extra_warmup_forwards`: forwards of one stage that a rank runs in addition before its first backward. Each holds
/// the activations of one more stage. Throws LogicError if ranks or microbatches are below 1, if
/// `extra_warmup_forwards` is negative, or if there is only one stage per rank, which is 1F1B.
Schedule interleaved_1f1b(int ranks, int stages_per_rank, int microbatches, int extra_warmup_forwards = 0);

}  // namespace orthant

// Interleaved 1F1B: every rank has v stages, dealt round, so a microbatch passes each rank v times. Megatron-LM,
// Narayanan et al. 2021, arXiv 2104.04473, section 2.2.
//
// Of p ranks and m microbatches, where a rank's stages together take f, b and w: bubble (p-1)(f+b+w)/v; rank r holds
// min(mv, 2(p-1-r) + (v-1)p + 1) stages' activations; 2m(pv-1) messages for 1F1B's 2m(p-1), each as large. Microbatches
// go in groups of p. The paper asks for whole groups; here the last may be short: it is a whole one with the
// microbatches left out that are not there.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// Each of `later` forwards more before the first backward is one more stage's activations. LogicError for one stage a
/// rank, which is 1F1B, and for no ranks or microbatches.
Schedule interleaved_1f1b(int ranks, int stages_per_rank, int microbatches, int later = 0);

}  // namespace orthant

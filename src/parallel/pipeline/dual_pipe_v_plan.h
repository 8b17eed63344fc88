// DualPipeV: one half of DualPipe, with V-shaped stages. A forward of one stage is paired with a backward of the rank's
// other stage, so that the messages of expert layers overlap with computation. DeepSeek-AI 2024, arXiv 2412.19437, and
// Qi et al., "DualPipe could be better without the dual".
//
// On p ranks, if all stages take the same time f = b = w and pairs do not overlap: a rank's own bubble is (p-1) f, and
// every rank holds the activations of 2p + 1 stages. Without expert layers, ZB-V has a smaller bubble.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// A pair is written as its two Actions, forward first. The published order needs at least 2 * ranks microbatches. For
/// fewer, the result is that order restricted to the first microbatches. Throws LogicError if ranks or microbatches are
/// below 1.
Schedule dual_pipe_v(int ranks, int microbatches);

}  // namespace orthant

// DualPipeV: DualPipe cut in half, on stages that go down the ranks and back up; a forward of one half is paired with a
// backward of the other, so that the messages of expert layers hide behind computation. DeepSeek-AI 2024, arXiv
// 2412.19437, and Qi et al., "DualPipe could be better without the dual".
//
// Of p ranks with stages that take the same f = b = w: a rank's own bubble is (p-1) f where pairs do not overlap; every
// rank holds 2p + 1 stages' activations. ZB-V has less bubble where there are no expert layers.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// Pairs stand as their two Actions, forward first. The source asks for 2 * ranks microbatches; fewer are those of a
/// whole schedule. LogicError without ranks or microbatches.
Schedule dual_pipe_v(int ranks, int microbatches);

}  // namespace orthant

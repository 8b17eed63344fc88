// Zero-bubble schedules with one stage per rank. Backward is split: the result of I (for the input) goes to the
// previous stage at once. W (for the weights), which no rank waits for, fills the bubble. Qi et al. 2023, arXiv
// 2401.10241.
//
// On p ranks with m microbatches, F, I and W take f, b and w. A microbatch holds M_B bytes from F to I, and M_W of them
// until W. A rank's own bubble is its idle time between its first and its last Action:
//   ZB-H1   own bubble (p-1)(f+b-w) for m >= p; rank r holds (p-r) M_B + r M_W, at most the maximum of 1F1B
//   ZB-H2   own bubble (p-1)(f+b-2w) for m >= 2p-1; rank r holds (2(p-r)-1) M_B + 2r M_W
// `extra_warmup_forwards`: forwards that a rank runs in addition before its first backward. The bubble stays the same,
// and each extra forward holds M_B more.
//
// Example, ZB-H1 with p = 2, m = 3:
//   rank 0: F0 F1 I0 W0 F2 I1 W1 I2 W2
//   rank 1: F0 I0 F1 I1 W0 F2 I2 W1 W2
#pragma once

#include "schedule/schedule.h"

namespace orthant {

// Both functions throw LogicError if ranks or microbatches are below 1, or if `extra_warmup_forwards` is negative.

Schedule zb_h1(int ranks, int microbatches, int extra_warmup_forwards = 0);
Schedule zb_h2(int ranks, int microbatches, int extra_warmup_forwards = 0);

}  // namespace orthant

// Zero-bubble schedules of one stage a rank: backward is split, I (for the input) goes on to the stage before at once,
// and W (for the weights), for which nobody waits, fills what would be bubble. Qi et al. 2023, arXiv 2401.10241.
//
// Of p ranks and m microbatches with passes of f, b and w, of which M_B bytes are held from F to I and M_W of them to
// W:
//   ZB-H1   a rank's own bubble (p-1)(f+b-w) for m >= p; rank r holds (p-r) M_B + r M_W, 1F1B's most
//   ZB-H2   a rank's own bubble (p-1)(f+b-2w) for m >= 2p-1; rank r holds (2(p-r)-1) M_B + 2r M_W
// (between its first and its last Action). With `later` forwards more before the first backward it is the same, and as
// many M_B more are held.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// LogicError without ranks or microbatches, or where `later` is negative.
Schedule zb_h1(int ranks, int microbatches, int later = 0);
Schedule zb_h2(int ranks, int microbatches, int later = 0);

}  // namespace orthant

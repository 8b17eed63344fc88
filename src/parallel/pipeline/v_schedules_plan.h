// V-shaped schedules: rank r has stages r and 2p-1-r, and backward is split into I and W. If activations of a
// microbatch are long-lived on one stage of a rank, they are short-lived on the other, so all ranks hold the same.
// ZB-V: Qi et al. 2023, arXiv 2401.10241, in its public code. V-Half, V-Min: Qi et al. 2024, arXiv 2405.15362.
//
// The table holds for p ranks, m >= 2p microbatches and passes of one stage that all take 1 unit of time. "Bubble" is
// the idle time of a rank between its first and last Action (1F1B: 6(p-1)). "Held" is the number of stages whose
// activations each rank holds (1F1B: 2p). The bubbles of V-Half and V-Min hold for p >= 3.
//   ZB-V    bubble 0; held 2p
//   V-Half  bubble 6p - 3K - 1, which is 3p-7 for even p and 3p-4 for odd p; held K = 2(floor(p/2)+1)
//   V-Min   bubble 6p - 3K - 1, plus 4 if p mod 3 = 2; held K = 2 ceil((p+2)/3)
//
// `extra_warmup_forwards`: forwards of one stage that a rank runs in addition before its first backward, rounded up to
// an even number, since a microbatch has two. "Held" grows by this number. The bubble of ZB-V stays 0, and those of
// V-Half and V-Min shrink.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

// All three functions throw LogicError if ranks or microbatches are below 1, or if `extra_warmup_forwards` is negative.

Schedule zb_v(int ranks, int microbatches, int extra_warmup_forwards = 0);
/// The order of F and I is that for passes of equal length. W fill the gaps that `durations` leave.
Schedule v_half(int ranks, int microbatches, const Durations& durations = Durations::of(1, 1, 1),
                int extra_warmup_forwards = 0);
Schedule v_min(int ranks, int microbatches, const Durations& durations = Durations::of(1, 1, 1),
               int extra_warmup_forwards = 0);

}  // namespace orthant

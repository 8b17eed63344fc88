// Schedules of two stages a rank that go down the ranks and back up: rank r has stages r and 2p-1-r, so that a
// microbatch whose life is long on one of them has a short one on the other, and all ranks hold the same. Backward is
// split. ZB-V: Qi et al. 2023, arXiv 2401.10241, in its public code. V-Half, V-Min: Qi et al. 2024, arXiv 2405.15362.
//
// Of p ranks and m >= 2p microbatches, in passes of one stage that all take the same; a rank's own bubble is what it
// idles between its first and its last Action (1F1B: 6(p-1)), held is stages' activations on every rank (1F1B: 2p). The
// bubbles of V-Half and V-Min hold for p >= 3:
//   ZB-V    bubble 0, 2p held
//   V-Half  bubble 6p - 3K - 1 (3p-7 for even p, 3p-4 for odd), K = 2(floor(p/2)+1) held
//   V-Min   bubble 6p - 3K - 1, 4 more where p mod 3 = 2; K = 2 ceil((p+2)/3) held
//
// With `later` forwards more of one stage before the first backward (rounded up to whole microbatches, of two) as many
// more are held, ZB-V's bubble stays 0, and that of V-Half and V-Min shrinks.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// LogicError without ranks or microbatches, or where `later` is negative; so the others.
Schedule zb_v(int ranks, int microbatches, int later = 0);
/// The orders of F and I are those of equal passes; W stand where `durations` leave room.
Schedule v_half(int ranks, int microbatches, const Durations& durations = Durations::of(1, 1, 1), int later = 0);
Schedule v_min(int ranks, int microbatches, const Durations& durations = Durations::of(1, 1, 1), int later = 0);

}  // namespace orthant

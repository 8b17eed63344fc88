// 1F1B: a rank begins backwards as early as possible, and then alternates between one forward and one backward.
// PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503.
//
// On p ranks with m microbatches, where F takes f and B takes b + w: the bubble is (p-1)(f+b+w), as in GPipe. Rank r
// holds only min(m, p-r) microbatches. A rank sends m outputs to the next rank and m gradients to the previous one, so
// there are 2m(p-1) messages.
//
// Example, p = 2, m = 3:
//   rank 0: F0 F1 B0 F2 B1 B2
//   rank 1: F0 B0 F1 B1 F2 B2
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// `extra_warmup_forwards`: forwards that a rank runs in addition before its first backward; it holds one more
/// microbatch for each. Throws LogicError if ranks or microbatches are below 1, or if `extra_warmup_forwards` is
/// negative.
Schedule one_f_one_b(int ranks, int microbatches, int extra_warmup_forwards = 0);

}  // namespace orthant

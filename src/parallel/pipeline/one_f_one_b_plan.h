// 1F1B: a rank begins backwards as soon as it can, and then takes one forward and one backward in turn.
// PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503.
//
// Of p ranks and m microbatches with passes of f, b and w: bubble (p-1)(f+b+w) as GPipe's, but rank r holds min(m, p-r)
// microbatches only. A rank sends m outputs to the next one and m gradients to the one before: 2m(p-1) messages in all.
// Each of `later` forwards more before the first backward is one more that it holds.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// LogicError without ranks or microbatches, or where `later` is negative.
Schedule one_f_one_b(int ranks, int microbatches, int later = 0);

}  // namespace orthant

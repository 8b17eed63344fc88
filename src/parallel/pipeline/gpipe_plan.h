// GPipe: all forwards of a step, then all backwards. Huang et al. 2018, arXiv 1811.06965.
//
// Of p ranks and m microbatches with passes of f, b (for the input) and w (for the weights): bubble (p-1)(f+b+w), and
// every rank holds m microbatches; 2m(p-1) messages.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// LogicError without ranks or microbatches.
Schedule gpipe(int ranks, int microbatches);

}  // namespace orthant

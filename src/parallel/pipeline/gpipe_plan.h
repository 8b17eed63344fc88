// GPipe: all forwards of a step, then all backwards. Huang et al. 2018, arXiv 1811.06965.
//
// On p ranks with m microbatches, where F takes f and B takes b (for the input) plus w (for the weights): the bubble is
// (p-1)(f+b+w), every rank holds m microbatches, and there are 2m(p-1) messages.
// Example for 3 microbatches, every rank: F0 F1 F2 B0 B1 B2.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// Throws LogicError if ranks or microbatches are below 1.
Schedule gpipe(int ranks, int microbatches);

}  // namespace orthant

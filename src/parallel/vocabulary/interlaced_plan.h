// The interlaced pipeline: 1F1B in which all ranks compute the vocabulary layers at the same moment, as tensor
// parallelism would. nnScaler, Lin et al., OSDI 2024; this order as drawn by Yeung et al. 2024, arXiv 2411.05288.
//
// Of p ranks: every microbatch waits for its barriers, whatever there is to compute beside them, and between two turns
// each rank does one forward and one backward, so that a gradient takes a whole interval from rank to rank: the first
// rank holds floor(1.5 p) microbatches for 1F1B's p.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// Backwards take twice as long as forwards. Without the input layer's Actions.
Schedule interlaced(int ranks, int microbatches);

}  // namespace orthant

// The interlaced pipeline: 1F1B in which all ranks compute the vocabulary layers at the same moment, as in tensor
// parallelism. nnScaler, Lin et al., OSDI 2024; in the order that Yeung et al. 2024, arXiv 2411.05288, draw.
//
// Every microbatch waits for its barriers, even if other computation is ready. Between two vocabulary turns each rank
// runs one forward and one backward, so a gradient takes a whole interval from rank to rank. With p ranks, the first
// rank holds floor(1.5 p) microbatches, where 1F1B holds p.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// The schedule for backwards that take twice as long as forwards, with S and T but without E and EB.
Schedule interlaced(int ranks, int microbatches);

}  // namespace orthant

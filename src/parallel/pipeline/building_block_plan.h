// Schedules made of one microbatch's pattern, repeated at a fixed interval: what a rank holds then follows from how
// long the pattern lasts. Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// When the forward and the backward (I) of the first microbatch begin, in slots of one pass each. On a rank the slots
/// of all its stages' F and I are distinct modulo `interval`, which has room for as many W.
struct BuildingBlock {
  Schedule stages;  // owners; the rows are empty
  int interval = 0;
  std::vector<int> forward, backward;  // by stage
};

/// Repeats the block and fills in W. Then what stands before the steady part and behind it moves to the earliest slots
/// at which all is there that it needs, and no rank holds more than in the steady part.
///
/// W are placed in three ways, of which the shortest is taken: as among equal passes; by `durations` where no forward
/// begins any more; by `durations` throughout. LogicError for no microbatches, or two passes in one slot.
Schedule repeat(const BuildingBlock& block, int microbatches, const Durations& durations);

}  // namespace orthant

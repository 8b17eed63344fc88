// Schedules made by repeating one microbatch's pattern, the building block, at a fixed interval. A rank's activation
// memory is then proportional to the time from F to W in the pattern. Qi et al. 2024, "Pipeline Parallelism with
// Controllable Memory", arXiv 2405.15362.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// Start slots of F and I of the first microbatch; every pass takes one slot. On each rank, the slots of all F and I
/// must be distinct modulo `interval`. The interval must have a free slot for each W.
/// Example: V-Min on 2 ranks has interval 6, forward {0, 1, 2, 3} and backward {7, 6, 5, 4}. Rank 0 owns stages 0 and
/// 3. Its F and I are in slots 0, 3, 4 and 7, which are 0, 3, 4 and 1 modulo 6. Its two W fill slots 2 and 5.
struct BuildingBlock {
  Schedule stages;  // owners of the stages; the rows are empty
  int interval = 0;                    // slots between the starts of successive microbatches
  std::vector<int> forward, backward;  // start slots of F and of I, by stage
};

/// Repeats the block for all microbatches and fills in W. Then passes of the warm-up and the cool-down move to the
/// earliest slots that their dependencies allow, as long as no rank holds more than in the steady phase.
///
/// W are placed in three ways: for passes of equal length; by `durations` only in the cool-down; by `durations`
/// throughout. The result is the schedule with the shortest makespan under `durations`. Throws LogicError if there are
/// no microbatches, or if two passes fall into one slot.
Schedule repeat(const BuildingBlock& block, int microbatches, const Durations& durations);

}  // namespace orthant

// Schedules made by repeating one microbatch's pattern, the building block, at a fixed interval. A rank's activation
// memory is then proportional to the time from F to W in the pattern. Qi et al. 2024, "Pipeline Parallelism with
// Controllable Memory", arXiv 2405.15362.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// Start slots of F and I of the first microbatch; every pass takes one slot. On each rank, the slots of all F and I
/// must be distinct modulo `interval`. `interval` should have a free slot for each W; otherwise W are delayed.
/// Example: V-Min on 2 ranks has interval 6, forward {0, 1, 2, 3} and backward {7, 6, 5, 4}. Rank 0 owns stages 0 and
/// 3. Its F and I are in slots 0, 3, 4 and 7, which are 0, 3, 4 and 1 modulo 6. Its two W fill slots 2 and 5.
struct BuildingBlock {
  Schedule stages;                     // only stage_owner and the number of rows are read
  int interval = 0;                    // slots between the starts of successive microbatches
  std::vector<int> forward, backward;  // start slots of F and of I, by stage
};

/// Repeats the block for all microbatches, puts each W into the first free slot after its I, and removes idle slots in
/// warm-up and cool-down: before I of microbatch 0 on stage 0, and after F of the last microbatch on stage 0. No rank
/// then exceeds the largest number of live activations of any rank in the repetition. F and I are ordered for passes of
/// equal length.
///
/// Three placements of W are tried: the cool-down's for equal passes, the cool-down's by `durations`, all by
/// `durations`. The one with the shortest makespan under `durations` is returned, without SEND and RECV. Throws
/// LogicError if microbatches < 1, or if two passes have one slot.
Schedule repeat_building_block(const BuildingBlock& block, int microbatches, const Durations& durations);

}  // namespace orthant

// Several consecutive steps of one schedule. A rank begins its next step as soon as its row has ended. Without STEP and
// FINALIZE (post-validation), all ranks wait for each other between two steps, and a step takes its makespan.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// Repeats each row `times` times. Microbatches of the k-th repetition, counted from 0, have numbers that are k times
/// the number of microbatches higher.
Schedule repeat_steps(const Schedule& schedule, int times);

/// Time from one step to the next if the rows end with STEP: the ends of a step overlap with the beginning of the next
/// one, as post-validation permits. Never more than the makespan of one step, and never less than the busy time of a
/// rank. Throws LogicError if a row has no STEP, or if `durations` gives the duration of every single Action.
double step_interval(const Schedule& schedule, const Durations& durations);

}  // namespace orthant

// Pipeline bubbles: idle time of the ranks, by the three definitions in use in papers.
#pragma once

#include "schedule/simulate.h"

namespace orthant {

/// Fraction of the time of all ranks in which they do not compute: 1 - busy time / (ranks * makespan). This is
/// Timeline::bubble.
double idle_fraction(const Timeline& timeline);

/// Makespan minus the busy time of the busiest rank, in the timeline's unit.
double makespan_bubble(const Timeline& timeline);

/// Maximum over ranks of the idle time between a rank's first and last computation, in the timeline's unit. Idle time
/// before the first and after the last computation does not count.
double max_rank_bubble(const Timeline& timeline);

}  // namespace orthant

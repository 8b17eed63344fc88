// Places W in the rows of a schedule. W depends only on its own I, and no pass depends on W, so it can fill any gap.
// The trade-off: a rank holds the activations of a microbatch until its W is done.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A pass that adds missing W. Forwards and backwards keep their order. An existing W keeps its position in the row,
/// but its stage and microbatch may change, because W run in the order of their I. A missing W is added where the rank
/// would idle at least as long as the W takes, before an F that would exceed `most_live` live activations, or at the
/// end of the row. Throws LogicError if the rows deadlock.
Schedule place_weights(const Schedule& schedule, int most_live, const Durations& durations);

}  // namespace orthant

// Places W in the rows of a schedule. W depends only on its own I, and no pass depends on W, so it can fill any gap.
// The trade-off: a rank holds the activations of a microbatch until its W is done.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A pass that adds missing W. Forwards and backwards keep their order. W run in the order of their I. So the W at an
/// existing position may change its stage and microbatch, and the position is dropped if no W is pending there. A W is
/// added in one of three places: where the rank would idle at least as long as the W takes, before an F that would
/// exceed `most_live` live activations, or at the end of the row. Throws LogicError if the rows deadlock.
Schedule place_weights(const Schedule& schedule, int most_live, const Durations& durations);

}  // namespace orthant

// Where W stands in a row: it waits for nothing but its I and nobody waits for it, so it can fill any gap; but until it
// is done its activations are held.
#pragma once

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A Pass. Forwards and backwards keep their order; a W that stands in a row keeps its place but may be another's,
/// since W go in the order of their I. Those that are missing are added: where the rank would idle as long as one
/// takes, before an F that would make more than `most_live` activations held, and at the end. LogicError where the rows
/// cannot be carried out.
Schedule place_weights(const Schedule& schedule, int most_live, const Durations& durations);

}  // namespace orthant

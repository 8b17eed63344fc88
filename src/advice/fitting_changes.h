// The changes of a run that make it fit its devices and its memory limit.
#pragma once

#include <vector>

#include "advice/alternatives.h"

namespace orthant {

/// Returns the changes that fit, each of one setting and of those that it requires: alternatives_to(), and the other
/// stages of ZeRO, tensor meshes, schedules and placements of the vocabulary. Of the sets of operations to recompute,
/// the cheapest. Offloading is not among them, because it is only planned.
std::vector<Alternative> fitting_changes(const Plan& plan);

/// Returns the change that fits with the shortest step. It is one of fitting_changes(), a stage of ZeRO with a set of
/// recomputed operations, or else combined_change(). Returns nothing if no change fits, or if the plan fits. Requires
/// facts.hardware.
std::optional<Alternative> fastest_that_fits(const Plan& plan);

}  // namespace orthant

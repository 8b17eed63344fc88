// The changes of a run that make it fit its devices and its memory limit.
#pragma once

#include <vector>

#include "advice/alternatives.h"

namespace orthant {

/// Returns the changes that fit, each of one setting and of those without which that setting would be illegal:
/// alternatives_to(), the other stages of ZeRO, tensor meshes, schedules and placements of the vocabulary, and the
/// recommended set of operations to recompute. Offloading is not among them, because it is only planned.
std::vector<Alternative> fitting_changes(const Plan& plan);

/// Returns the change that fits with the shortest step: one of fitting_changes(), or a stage of ZeRO with a set of
/// recomputed operations and a size of microbatches. If no such change fits on the plan's number of ranks, it
/// returns combined_change(), or else a change of that number. Returns nothing if no change fits, or if the plan fits.
/// Requires facts.hardware.
std::optional<Alternative> fastest_that_fits(const Plan& plan);

}  // namespace orthant

// The first lines of a plan: how long a step takes and what takes the time, whether the run fits the devices or
// else the fastest change that makes it fit, and the bytes sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "advice/alternatives.h"
#include "plan/plan.h"

namespace orthant {

/// The change that fits a device with the shortest step. It is one of the alternatives, a stage of ZeRO with a set of
/// recomputed operations, another vocabulary placement or another schedule, or else combined_change(). Returns nothing
/// if no change fits, or if the plan fits.
std::optional<Alternative> fastest_that_fits(const Plan& plan);

/// A time of the plan's timeline as text: in milliseconds, or without a unit if the hardware is not known.
std::string timeline_text(const Plan& plan, double time);

/// Returns the answer as text. Without hardware it has no times, and does not say whether the run fits.
std::string explain_answer(const Plan& plan);

}  // namespace orthant

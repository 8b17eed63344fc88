// The first lines of a plan: how long a step takes and what takes the time, whether the run fits the devices or
// else the fastest change that makes it fit, and the bytes sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/plan.h"

namespace orthant {

/// A time of the plan's timeline as text: in milliseconds, or without a unit if the hardware is not known.
std::string timeline_text(const Plan& plan, double time);

/// Returns the answer as text. Without hardware it has no times, and does not say whether the run fits.
std::string explain_answer(const Plan& plan);

}  // namespace orthant

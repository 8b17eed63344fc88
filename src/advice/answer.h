// The first lines of a plan: how long a step takes and what takes the time, whether the run fits the devices or
// else the fastest change that makes it fit, and the bytes sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "advice/alternatives.h"
#include "plan/plan.h"

namespace orthant {

/// Memory of the rank that needs most, compared with a device.
struct Fit {
  int rank = 0;
  int64_t tensor_bytes = 0;
  /// Bytes that the plan does not count: context, buffers of communicators, and what the allocator loses.
  int64_t other_bytes = 0;
  int64_t device_bytes = 0;

  int64_t spare_bytes() const { return device_bytes - tensor_bytes - other_bytes; }
  bool fits() const { return spare_bytes() >= 0; }
};

/// Compares the plan, or the same plan with other bytes of tensors, with the memory of a device. Requires
/// facts.hardware.
Fit fit_of(const Plan& plan);
Fit fit_of(const Plan& plan, int64_t tensor_bytes);

/// The change that fits a device with the shortest step. It is one of the alternatives, a stage of ZeRO with a set of
/// recomputed operations, another vocabulary placement or another schedule, or else combined_change(). Returns nothing
/// if no change fits, or if the plan fits.
std::optional<Alternative> fastest_that_fits(const Plan& plan);

/// A time of the plan's timeline as text: in milliseconds, or without a unit if the hardware is not known.
std::string timeline_text(const Plan& plan, double time);

/// Returns the answer as text. Without hardware it has no times, and does not say whether the run fits.
std::string explain_answer(const Plan& plan);

}  // namespace orthant

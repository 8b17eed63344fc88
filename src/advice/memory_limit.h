// Refuses plans that exceed the user's memory limit.
#pragma once

#include <cstdint>
#include <string>

#include "plan/plan.h"

namespace orthant {

/// True if `bytes` are within run.memory_gib_per_rank, where 0 is no limit.
bool fits_a_rank(const Config& config, int64_t bytes);
/// Whether tensors of `bytes` fit run.memory_gib_per_rank and, if the hardware is known, a device.
bool fits_a_device(const Plan& plan, int64_t bytes);

/// Returns "0.0235 GiB", rounded up to three digits.
std::string gib_text(int64_t bytes);
/// Returns the same without the unit, as run.memory_gib_per_rank takes it.
std::string gib_number(int64_t bytes);

/// Throws ConfigError if a rank of the plan needs more than run.memory_gib_per_rank. The message lists those of the
/// compared alternatives that would fit.
void require_fitting(const Plan& plan);

}  // namespace orthant

// Whether a plan fits the memory of its devices and the user's limit, run.memory_gib_per_rank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plan/plan.h"

namespace orthant {

/// Memory of the rank that needs most, compared with a device and with run.memory_gib_per_rank.
struct Fit {
  int rank = 0;
  int64_t tensor_bytes = 0;
  /// Bytes that the plan does not count: context, buffers of communicators, and what the allocator loses, which grows
  /// with tensor_bytes.
  int64_t other_bytes = 0;
  std::optional<int64_t> device_bytes;  // nothing if the hardware is not known
  std::optional<int64_t> limit_bytes;   // of tensors; nothing without a limit

  /// The least that is left of the device and of the limit. Negative if the rank lacks memory.
  int64_t spare_bytes() const;
  bool fits() const { return spare_bytes() >= 0; }
};

/// Compares the plan with its device and its limit. It fits if neither is known.
Fit fit_of(const Plan& plan);
/// The most bytes of tensors with which this plan would fit its device, and its limit. Nothing if neither is known.
std::optional<int64_t> most_tensor_bytes(const Plan& plan);
/// The same for the device alone; nothing if the hardware is not known.
std::optional<int64_t> most_tensor_bytes_of_device(const Plan& plan);

/// True if tensors of `bytes` are within run.memory_gib_per_rank, where 0 is no limit.
bool within_limit(const Config& config, int64_t bytes);

/// Returns "0.0235 GiB", rounded up to three digits: memory that is needed.
std::string gib_text(int64_t bytes);
/// The same, rounded down: available memory.
std::string room_text(int64_t bytes);
/// Returns gib_text() without the unit, as run.memory_gib_per_rank takes it.
std::string gib_number(int64_t bytes);

}  // namespace orthant

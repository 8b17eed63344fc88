// Adds what a process needs besides its tensors, and compares the sum with a device.
#include "advice/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/from_config.h"
#include "hardware/hardware.h"
#include "plan/nccl_groups.h"

namespace orthant {
namespace {

// Returns the communicators of the rank that needs most memory: those of NCCL, or on CPUs one for each axis and one for
// all gradients.
int64_t count_communicators(const Plan& plan) {
  if (plan.mesh.size() == 1) return 0;
  if (uses_nccl(plan.config)) return nccl_groups(plan).communicators(plan.mesh.coord(plan.worst_rank(), kPipeline));
  int64_t count = 0;
  for (const Axis& axis : plan.mesh.axes) count += axis.size > 1 ? 1 : 0;
  return count > 1 ? count + 1 : count;
}

// Bytes of a process that do not depend on its tensors. Requires facts.hardware.
double fixed_bytes(const Plan& plan) {
  const ProcessMemoryTable& process = plan.facts.hardware->process_memory;
  return process.context_bytes + process.communicator_bytes * static_cast<double>(count_communicators(plan));
}

// Returns the bytes in GiB with three digits. `round` makes a whole number of the third digit.
template <typename Round>
std::string three_digits(int64_t bytes, Round round) {
  const double gib = static_cast<double>(bytes) / 0x1p30;
  if (gib == 0) return "0";
  const double digit = std::pow(10, std::floor(std::log10(gib)) - 2);
  const double rounded = round(gib / digit) * digit;
  return rounded < 100 ? fmt::format("{:.3g}", rounded) : fmt::format("{:.0f}", rounded);
}

// Returns run.memory_gib_per_rank in bytes; nothing if it is 0, no limit.
std::optional<int64_t> limit_bytes(const Config& config) {
  const double bytes = config.run.memory_gib_per_rank * 0x1p30;
  if (bytes == 0) return {};
  return bytes < 0x1p62 ? static_cast<int64_t>(bytes) : int64_t{1} << 62;
}

}  // namespace

std::string gib_number(int64_t bytes) {
  return three_digits(bytes, [](double value) { return std::ceil(value); });
}

std::string gib_text(int64_t bytes) { return gib_number(bytes) + " GiB"; }

std::string room_text(int64_t bytes) {
  return three_digits(bytes, [](double value) { return std::floor(value); }) + " GiB";
}

bool within_limit(const Config& config, int64_t bytes) {
  const std::optional<int64_t> limit = limit_bytes(config);
  return !limit || bytes <= *limit;
}

int64_t Fit::spare_bytes() const {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  return std::min(device_bytes ? *device_bytes - tensor_bytes - other_bytes : kNone,
                  limit_bytes ? *limit_bytes - tensor_bytes : kNone);
}

Fit fit_of(const Plan& plan) {
  Fit fit = {
      .rank = plan.worst_rank(), .tensor_bytes = plan.largest_memory_bytes(), .limit_bytes = limit_bytes(plan.config)};
  if (!plan.facts.hardware) return fit;
  const double slack = plan.facts.hardware->process_memory.allocator_slack_share;
  fit.other_bytes = std::llround(fixed_bytes(plan) + slack * static_cast<double>(fit.tensor_bytes));
  fit.device_bytes = std::llround(plan.facts.hardware->device.memory_bytes);
  return fit;
}

std::optional<int64_t> most_tensor_bytes_of_device(const Plan& plan) {
  if (!plan.facts.hardware) return {};
  const Hardware& hardware = *plan.facts.hardware;
  const double bytes =
      (hardware.device.memory_bytes - fixed_bytes(plan)) / (1 + hardware.process_memory.allocator_slack_share);
  return std::max<int64_t>(0, static_cast<int64_t>(bytes));
}

std::optional<int64_t> most_tensor_bytes(const Plan& plan) {
  const std::optional<int64_t> device = most_tensor_bytes_of_device(plan), limit = limit_bytes(plan.config);
  if (!device || !limit) return device ? device : limit;
  return std::min(*device, *limit);
}

}  // namespace orthant

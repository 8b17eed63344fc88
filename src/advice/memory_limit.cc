// Compares a plan with the memory limit, and finds the alternatives that fit.
#include "advice/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>

#include "advice/alternatives.h"
#include "advice/fit.h"
#include "advice/fitting_changes.h"
#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

// Names what makes the run fit: single changes, or a combined one, or the least memory that was found.
std::string ways_to_fit(const Plan& plan) {
  std::vector<std::string> changes;
  for (const Alternative& other : fitting_changes(plan)) {
    changes.push_back(fmt::format("{} ({})", other.change, gib_text(other.memory_bytes)));
  }
  if (!changes.empty()) return "changes that fit: " + join(changes, ", ");
  std::optional<Alternative> least;
  if (const auto change = combined_change(plan, &least)) {
    return fmt::format("of the changes that were compared the least that fits is {} ({})", change->change,
                       gib_text(change->memory_bytes));
  }
  const std::string smallest =
      least && least->memory_bytes < plan.largest_memory_bytes()
          ? fmt::format(" (the least that was found is {}, with {})", gib_text(least->memory_bytes), least->change)
          : "";
  return fmt::format("no change that was compared fits{}: use more ranks, shorter sequences or a smaller model{}",
                     smallest, plan.facts.hardware ? ", or let orthant plan --search find a layout" : "");
}

}  // namespace

void require_fitting(const Plan& plan) {
  const int64_t bytes = plan.largest_memory_bytes();
  if (within_limit(plan.config, bytes)) return;
  const std::optional<int64_t> most = most_tensor_bytes_of_device(plan);
  const std::string way = most && bytes > *most ? fmt::format("a device has room for {} of tensors", room_text(*most))
                                                : fmt::format("set it to {} or more", gib_number(bytes));
  throw ConfigError(fmt::format("{} must be at least {}, the bytes of the tensors of rank {}; {}; {}",
                                plan.config.locate("run.memory_gib_per_rank"), gib_text(bytes), plan.worst_rank(), way,
                                ways_to_fit(plan)));
}

}  // namespace orthant

// Compares two configurations by the printed values of their keys.
#include "config/changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "config/table.h"

namespace orthant {

std::vector<std::string> config_changes(const Config& from, const Config& to) {
  constexpr std::array<std::string_view, 5> kSections = {"model", "data", "training", "optimizer", "lr_scheduler"};
  std::vector<std::string> changes;
  for (const Key& key : config_table()) {
    if (std::ranges::find(kSections, key.section) == kSections.end()) continue;
    const std::string before = value_text(key, from), now = value_text(key, to);
    if (before != now) changes.push_back(fmt::format("{} {} -> {}", key.full_name(), before, now));
  }
  return changes;
}

}  // namespace orthant

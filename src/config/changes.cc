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

std::vector<KeyValues> differing_keys(std::span<const std::optional<Config>> configs) {
  std::vector<KeyValues> differing;
  for (const Key& key : config_table()) {
    KeyValues row{.key = key.full_name(), .values = {}};
    const std::string* first = nullptr;
    bool differs = false;
    row.values.reserve(configs.size());  // `first` stays valid
    for (const auto& config : configs) {
      const std::string& value = row.values.emplace_back(config ? value_text(key, *config) : "");
      if (!config) continue;
      if (first == nullptr) first = &value;
      differs = differs || value != *first;
    }
    if (differs) differing.push_back(std::move(row));
  }
  return differing;
}

}  // namespace orthant

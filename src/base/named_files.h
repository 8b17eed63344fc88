// Files under a name, such as those of a validation set.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// The name is empty if there is only one such set.
struct NamedFiles {
  std::string name;
  std::vector<std::string> files;
  bool operator==(const NamedFiles&) const = default;
};

/// True if the name has only letters, digits, '-', '_' and '.', so that it can be part of a metric's name.
bool is_set_name(std::string_view name);

/// A legal name for each path, all different: other characters become '-'. Examples: "data/web" becomes "data-web", and
/// a second path with this name "data-web-2".
std::vector<std::string> set_names_of(std::span<const std::string> paths);

}  // namespace orthant

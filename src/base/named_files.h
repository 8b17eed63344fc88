// Files under a name, such as those of a validation set.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// The name is empty if there is only one such set.
struct NamedFiles {
  std::string name;
  std::vector<std::string> files;
  bool operator==(const NamedFiles&) const = default;
};

}  // namespace orthant

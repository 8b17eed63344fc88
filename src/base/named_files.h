#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Files under a name, such as those of a validation set. The name is empty if no other set must be told apart.
struct NamedFiles {
  std::string name;
  std::vector<std::string> files;
  bool operator==(const NamedFiles&) const = default;
};

}  // namespace orthant

// The features of a run file that the matrix combines: each a name and the settings of its levels. A draw takes one
// level of each of two or three features.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Settings as on the command line: "parallelism.context_parallel_ring=2".
using Settings = std::vector<std::string>;

struct Level {
  std::string name;  // "ring 2, stripe"
  Settings settings;
};

struct Feature {
  std::string name;  // "ring"
  std::vector<Level> levels;
};

/// In the order of the rows of docs/combinations.md. Where two levels set one key, the later feature's value holds.
const std::vector<Feature>& features();

/// Position of the feature and level of that name. LogicError if there is none.
struct LevelId {
  size_t feature = 0, level = 0;
  bool operator==(const LevelId&) const = default;
};
LevelId level_named(const std::string& name);
const Level& level_of(const LevelId& id);

}  // namespace orthant

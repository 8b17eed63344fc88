// The features of a run file that the matrix combines. A feature has levels, and each level is a list of settings. A
// draw takes one level of each of two or three features.
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

/// In the order of the rows of docs/combinations.md. If two levels set one key, the later feature's value applies.
const std::vector<Feature>& features();

/// Index of a feature in features(), and of a level in the feature.
struct LevelId {
  size_t feature = 0, level = 0;
  bool operator==(const LevelId&) const = default;
};
/// Throws LogicError if no level has that name.
LevelId level_named(const std::string& name);
const Level& level_of(const LevelId& id);

}  // namespace orthant

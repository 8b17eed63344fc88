// Names of the mesh axes of a plan. Layouts, messages and byte counters refer to axes by these names.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Names of mesh axes. A group may span several axes; the order of its ranks follows the mesh, not this list.
using Axes = std::vector<std::string>;

inline const std::string kColumn = "column", kRow = "row", kDepth = "depth";  // tensor parallelism, inner to outer
inline const std::string kUlysses = "ulysses", kRing = "ring";  // sequence parallelism
inline const std::string kData = "data", kPipeline = "pipeline";
/// Copies of sharded states: the data ranks that do not shard them. A mesh has this axis only if there are such ranks.
inline const std::string kReplica = "replica";

/// Single axes as arguments of collectives.
inline const Axes kOverColumns = {kColumn}, kOverRows = {kRow}, kOverData = {kData}, kOverPipeline = {kPipeline};

}  // namespace orthant

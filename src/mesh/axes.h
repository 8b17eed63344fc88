// The axes of a plan's mesh, by the names that its layouts, messages and counters have for them.
#pragma once

#include <string>
#include <vector>

namespace orthant {

/// Names of mesh axes; a group over several axes at once is legal, and its positions are in the mesh's own order.
using Axes = std::vector<std::string>;

inline const std::string kColumn = "column", kRow = "row", kDepth = "depth";  // of a tensor mesh, from inner to outer
inline const std::string kUlysses = "ulysses", kRing = "ring";  // of a sequence mesh
inline const std::string kData = "data", kPipeline = "pipeline";

/// Collectives over one of them.
inline const Axes kOverColumns = {kColumn}, kOverRows = {kRow}, kOverData = {kData}, kOverPipeline = {kPipeline};

}  // namespace orthant

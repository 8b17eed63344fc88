// The buckets of gradients in the flat buffer of one rank.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/placement.h"

namespace orthant {

/// Offsets and sizes of the weights in a flat gradient buffer, and its regions.
struct GradientOffsets {
  std::vector<std::pair<int64_t, int64_t>> weights;
  std::vector<GradientRegion> regions;
};
GradientOffsets gradient_offsets(const ParameterPlacement& plan, const FlatLayout& flat);

/// All buckets, with their ranges and, if `has_chunks`, their chunks in the rank's gradient buffer, whose layout is
/// `flat`. Buckets of other ranks' stages have empty ranges. The ranks of a tensor mesh use the cuts of the rank with
/// the largest shards, limited to their own shards. A parameter that one position must own in full therefore has the
/// same owner on all of them.
std::vector<GradientBucket> held_buckets(const ParameterPlacement& plan, int rank, const FlatLayout& flat,
                                         bool has_chunks = true);

}  // namespace orthant

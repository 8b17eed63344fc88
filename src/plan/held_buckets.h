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

/// All buckets, with their ranges and chunks in the rank's gradient buffer, whose layout is `flat`. Buckets of other
/// ranks' stages have empty ranges. The ranks of a tensor mesh divide a bucket at the same places of each parameter, so
/// that they own parts of the same parameters, also if their shards have different sizes.
std::vector<GradientBucket> held_buckets(const ParameterPlacement& plan, int rank, const FlatLayout& flat);

}  // namespace orthant

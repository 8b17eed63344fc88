// Counts the bytes of other ranks' partial sums that a rank holds while gradients are reduced in the background of
// backward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement.h"

namespace orthant {

class GradientStaging {
 public:
  /// `plan` must outlive this object.
  explicit GradientStaging(const ParameterPlacement& plan);
  /// Returns bytes of other ranks' partial sums by layer: the embedding, the blocks, then the head. An entry counts the
  /// reductions of the rank's buckets that the backward of this layer completes and so starts. All reductions may be
  /// in progress at the same time, so the entries add up.
  std::vector<int64_t> of(std::span<const GradientBucket> buckets, int rank) const;

 private:
  const ParameterPlacement& plan_;
  std::vector<int> layers_;  // layer of each weight
};

}  // namespace orthant

// What a rank holds of other ranks' gradients while sums over ranks are formed behind backward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/plan.h"

namespace orthant {

class GradientStaging {
 public:
  /// The plan must outlive it.
  explicit GradientStaging(const Plan& plan);
  /// Bytes of others' summands for the sums that each layer's backward begins, which completes a bucket of the rank: of
  /// the embedding, the blocks, then the head. None of them need have ended before all have begun.
  std::vector<int64_t> of(std::span<const GradientBucket> buckets, int rank) const;

 private:
  const Plan& plan_;
  std::vector<int> layers_;  // by weight
};

}  // namespace orthant

// Who holds what of the parameters: a part of making a Plan.
#pragma once

#include <map>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// Layouts, groups and buckets, from the parameters, the sequences' cut and the gradients' axes.
void lay_out_parameters(Plan& plan);

/// What ranks that hold the same of the parameters have in common.
struct HeldPart {
  int64_t elements = 0;  // of a flat buffer
  std::vector<GradientBucket> buckets;
};
class HeldParts {
 public:
  explicit HeldParts(const Plan& plan);
  const HeldPart& of(int rank) const { return parts_.at(first_like(rank)); }
  /// As Plan::first_like().
  int first_like(int rank) const { return first_like_[static_cast<size_t>(rank)]; }

 private:
  std::vector<int> first_like_;
  std::map<int, HeldPart> parts_;  // by the first rank that holds it
};

}  // namespace orthant

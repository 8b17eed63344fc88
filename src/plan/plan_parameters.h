// Who holds what of the parameters: a part of making a Plan.
#pragma once

#include <map>

#include "plan/plan.h"

namespace orthant {

/// Layouts, groups and buckets, from the parameters, the sequences' cut and the gradients' axes.
void lay_out_parameters(Plan& plan);

/// What ranks that hold the same of the parameters have in common.
struct HeldPart {
  int64_t elements = 0;  // of a flat buffer
  std::vector<GradientBucket> buckets;
};
/// By the first of those ranks.
std::map<int, HeldPart> held_parts(const Plan& plan);

}  // namespace orthant

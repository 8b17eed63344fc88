// Who holds what of the parameters: a part of making a Plan.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// Layouts, groups and buckets, from the parameters, the sequences' cut and the gradients' axes.
void lay_out_parameters(Plan& plan);

}  // namespace orthant

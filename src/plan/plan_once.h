// A plan by itself: what other plans are compared with.
#pragma once

#include "plan/plan.h"

namespace orthant {

/// As make_plan(), without the alternatives, which are plans themselves.
Plan plan_once(const Config& config, const RunFacts& facts);

}  // namespace orthant

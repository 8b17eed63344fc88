// How long a layer's attention takes under a layout, once the links are known.
#pragma once

#include "plan/layer_choices.h"

namespace orthant {

/// Seconds of one layer's attention, a step, forward and backward: the all-to-alls, which nothing hides, and the longer
/// of computing and the ring, of which one hides the other (Liu et al. 2023, "Ring Attention", arXiv 2310.01889,
/// section 3). Computing is the busiest rank's, as if no sequence were packed. Messages to a group's members are taken
/// as equal. Infinity where the layout does not cut sequences or batch.
double attention_seconds(const Plan& plan, const LayerChoice& choice, const Links& links);

}  // namespace orthant

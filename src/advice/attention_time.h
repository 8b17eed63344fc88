// Estimates the time of one layer's attention under a layout, for known speeds of the links.
#pragma once

#include "advice/layer_choices.h"

namespace orthant {

/// Returns the seconds per step of one layer's attention, forward and backward: the all-to-alls plus the longer of
/// computation and ring. Nothing hides the all-to-alls. Computation and ring hide each other (Liu et al. 2023, "Ring
/// Attention", arXiv 2310.01889, section 3). Computation is that of the busiest rank, as if no sequence were packed.
/// All messages within a group count as equally long. Infinity if the layout shards neither sequences nor batch.
double attention_seconds(const Plan& plan, const LayerChoice& choice, const Links& links);

}  // namespace orthant

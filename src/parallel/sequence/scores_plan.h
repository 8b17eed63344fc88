// How many scores a ring rank computes: the pairs of its queries and the keys they attend to, counted in closed form.
#pragma once

#include "parallel/sequence/placement_plan.h"

namespace orthant {

/// Number of pairs of a query of ring rank r and a key that it attends to, for one head and one sequence that is a
/// single document. A causal query attends to keys up to its own position. `window` limits the keys on each side, the
/// query's own position included; 0: no limit.
int64_t num_visible_pairs(SequencePlacement placement, int64_t seq_len, int ring, int r, bool causal, int64_t window);

}  // namespace orthant

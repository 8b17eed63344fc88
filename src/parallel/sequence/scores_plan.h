// How much of attention a rank of the ring computes: what its queries see of the sequence, without listing them.
#pragma once

#include "parallel/sequence/placement_plan.h"

namespace orthant {

/// Pairs of a query of ring rank r and a key that it sees, of one sequence and head, where the sequence is one text. A
/// query sees the keys up to its own if causal, and `window` of them at most to either side; 0: all.
int64_t num_seen_pairs(SequencePlacement placement, int64_t seq_len, int ring, int r, bool causal, int64_t window);

}  // namespace orthant

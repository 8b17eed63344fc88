// The ways to cut sequences over as many ranks as the plan does, side by side: what one layer's attention sends and keeps
// on its busiest rank.
#pragma once

#include "plan/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

struct SequenceChoice {
  SequencePlan plan;
  int64_t forward_bytes = 0, backward_bytes = 0;  // sent by a rank, a layer and microbatch
  int64_t kept_bytes = 0;                         // from forward to backward, a layer and microbatch
  bool chosen = false;

  int64_t sent_bytes() const { return forward_bytes + backward_bytes; }
};

/// Every ulysses x ring of the plan's product that its heads allow, with its placement, and ring self-attention where
/// there is a ring; the plan's own among them. Empty where sequences are whole.
std::vector<SequenceChoice> sequence_choices(const Plan& plan);

/// The one that sends the fewest bytes; of equals, the one that keeps the least.
const SequenceChoice& best_of(const std::vector<SequenceChoice>& choices);

/// A table of them for people, and a sentence on the best.
std::string explain_sequences(const Plan& plan);

}  // namespace orthant

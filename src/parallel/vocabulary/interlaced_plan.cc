#include "parallel/vocabulary/interlaced_plan.h"

#include <algorithm>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {

Schedule interlaced(int ranks, int microbatches) {
  using enum ActionKind;
  ORTHANT_CHECK(microbatches >= 1, microbatches);
  Schedule out = round_robin_stages(ranks, 1);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = out.rows[static_cast<size_t>(rank)];
    const int below = ranks - 1 - rank;
    // Warm-up forwards, until rank 0 holds as many microbatches as it may.
    int forwards = 0;
    const auto forward_until = [&](int end) {
      while (forwards < std::min(end, microbatches)) row.push_back({F, rank, forwards++});
    };
    forward_until(3 * ranks / 2 - rank);
    for (int turn = 0; turn < microbatches + below; ++turn) {
      if (turn < microbatches) {
        row.push_back({S, rank, turn});
        row.push_back({T, rank, turn});
      }
      // The forward that the rank two places further down needs in the next turn. On every second rank it runs before
      // the backward.
      const int end = turn + 2 + below / 2;
      if (below % 2 == 1) forward_until(end);
      if (turn >= below) row.push_back({B, rank, turn - below});
      forward_until(end);
    }
  }
  return out;
}

}  // namespace orthant

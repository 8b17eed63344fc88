// Generates the 1F1B order.
#include "parallel/pipeline/one_f_one_b_plan.h"

#include <algorithm>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {

Schedule one_f_one_b(int ranks, int microbatches, int extra_warmup_forwards) {
  ORTHANT_CHECK(microbatches >= 1 && extra_warmup_forwards >= 0, microbatches, extra_warmup_forwards);
  Schedule out = round_robin_stages(ranks, 1);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = out.rows[static_cast<size_t>(rank)];
    const int warm_up = std::min(microbatches, ranks - 1 - rank + extra_warmup_forwards);
    for (int m = 0; m < warm_up; ++m) row.push_back({ActionKind::F, rank, m});
    for (int m = 0; m < microbatches; ++m) {
      if (warm_up + m < microbatches) row.push_back({ActionKind::F, rank, warm_up + m});
      row.push_back({ActionKind::B, rank, m});
    }
  }
  return out;
}

}  // namespace orthant

// Generates the GPipe order.
#include "parallel/pipeline/gpipe_plan.h"

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {

Schedule gpipe(int ranks, int microbatches) {
  ORTHANT_CHECK(microbatches >= 1, microbatches);
  Schedule out = round_robin_stages(ranks, 1);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = out.rows[static_cast<size_t>(rank)];
    for (const ActionKind kind : {ActionKind::F, ActionKind::B})
      for (int m = 0; m < microbatches; ++m) row.push_back({kind, rank, m});
  }
  return out;
}

}  // namespace orthant

// Generates interleaved 1F1B: numbers the passes of a rank over groups of microbatches and chunks, then applies the
// order of 1F1B to these numbers.
#include "parallel/pipeline/interleaved_plan.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {

Schedule interleaved_1f1b(int ranks, int stages_per_rank, int microbatches, int extra_warmup_forwards) {
  ORTHANT_CHECK(stages_per_rank > 1 && microbatches >= 1 && extra_warmup_forwards >= 0, stages_per_rank, microbatches,
                extra_warmup_forwards);
  Schedule out = round_robin_stages(ranks, stages_per_rank);
  const int passes = (microbatches + ranks - 1) / ranks * ranks * stages_per_rank;  // per rank, in complete groups
  const int round = ranks * stages_per_rank;  // passes of one group of microbatches on one rank
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = out.rows[static_cast<size_t>(rank)];
    const auto add = [&](ActionKind kind, int pass) {
      const int chunk = pass % round / ranks;
      const int stage = (kind == ActionKind::F ? chunk : stages_per_rank - 1 - chunk) * ranks + rank;
      row.push_back({kind, stage, pass / round * ranks + pass % ranks});
    };
    const int ahead = 2 * (ranks - 1 - rank) + (stages_per_rank - 1) * ranks + extra_warmup_forwards;
    const int warm_up = std::min(passes, ahead);
    for (int pass = 0; pass < warm_up; ++pass) add(ActionKind::F, pass);
    for (int pass = 0; pass < passes; ++pass) {
      if (warm_up + pass < passes) add(ActionKind::F, warm_up + pass);
      add(ActionKind::B, pass);
    }
  }
  return first_microbatches(std::move(out), microbatches);
}

}  // namespace orthant

// Generates DualPipeV row by row, in the eight phases of the published order.
#include "parallel/pipeline/dual_pipe_v_plan.h"

#include <algorithm>
#include <deque>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {

Schedule dual_pipe_v(int ranks, int microbatches) {
  ORTHANT_CHECK(microbatches >= 1, microbatches);
  Schedule out = v_shaped_stages(ranks);
  const int m = std::max(microbatches, 2 * ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    RowBuilder row = make_row_builder(out, rank);
    std::deque<Action> weights;  // W of each I so far that are not in the row yet
    const int first = row.down, second = row.up, below = ranks - rank - 1, above = rank + 1;
    const auto F = [&](int stage) { row.add(ActionKind::F, stage); };
    const auto B = [&](int stage) { row.add(ActionKind::B, stage); };
    const auto I = [&](int stage) {
      row.add(ActionKind::I, stage);
      weights.push_back({ActionKind::W, stage, row.actions.back().microbatch});
    };
    const auto W = [&] {
      row.actions.push_back(weights.front());
      weights.pop_front();
    };
    for (int i = 0; i < 2 * below; ++i) F(first);
    for (int i = 0; i < above; ++i) F(first), F(second);
    for (int i = 0; i < below; ++i) I(second), W(), F(second);
    for (int i = 0; i < m - 2 * ranks + above; ++i) F(first), B(second), F(second), B(first);
    for (int i = 0; i < below; ++i) B(second), F(second), B(first);
    for (int i = 0; i < 2 * above; ++i) {  // the second half are I, and their W follow later
      const int stage = i % 2 == 0 ? second : first;
      if (i < above)
        B(stage);
      else
        I(stage);
    }
    for (int i = 0; i < below; ++i) W(), I(first);
    while (!weights.empty()) W();
  }
  return first_microbatches(std::move(out), microbatches);
}

}  // namespace orthant

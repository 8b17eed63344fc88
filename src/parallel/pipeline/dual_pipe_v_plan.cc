#include "parallel/pipeline/dual_pipe_v_plan.h"

#include <algorithm>
#include <deque>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {
namespace {

/// One rank's row as it grows: the next microbatch of each kind and stage is counted here.
struct Row {
  std::vector<Action>& actions;
  const int down, up;  // the rank's two stages
  int forwards[2] = {}, backwards[2] = {};
  std::deque<Action> weights;

  void F(bool second) { actions.push_back({ActionKind::F, second ? up : down, forwards[second]++}); }
  void B(bool second) { actions.push_back({ActionKind::B, second ? up : down, backwards[second]++}); }
  void I(bool second) {
    actions.push_back({ActionKind::I, second ? up : down, backwards[second]++});
    weights.push_back({ActionKind::W, actions.back().stage, actions.back().microbatch});
  }
  void W() {
    actions.push_back(weights.front());
    weights.pop_front();
  }
};

}  // namespace

Schedule dual_pipe_v(int ranks, int microbatches) {
  ORTHANT_CHECK(microbatches >= 1, microbatches);
  Schedule out = v_shaped(ranks);
  const int m = std::max(microbatches, 2 * ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    Row row{.actions = out.rows[static_cast<size_t>(rank)], .down = rank, .up = 2 * ranks - 1 - rank};
    const int below = ranks - rank - 1, above = rank + 1;
    constexpr bool first = false, second = true;
    for (int i = 0; i < 2 * below; ++i) row.F(first);
    for (int i = 0; i < above; ++i) row.F(first), row.F(second);
    for (int i = 0; i < below; ++i) row.I(second), row.W(), row.F(second);
    for (int i = 0; i < m - 2 * ranks + above; ++i) row.F(first), row.B(second), row.F(second), row.B(first);
    for (int i = 0; i < below; ++i) row.B(second), row.F(second), row.B(first);
    for (int i = 0; i < 2 * above; ++i) {  // the second half of them leave their W for later
      const bool stage = i % 2 == 0 ? second : first;
      if (i < above)
        row.B(stage);
      else
        row.I(stage);
    }
    for (int i = 0; i < below; ++i) row.W(), row.I(first);
    while (!row.weights.empty()) row.W();
  }
  return first_microbatches(std::move(out), microbatches);
}

}  // namespace orthant

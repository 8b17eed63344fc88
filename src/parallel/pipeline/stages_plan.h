// Where stages stand on pipeline ranks, before any schedule fills the rows.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// `chunks` stages a rank, dealt round: stage c * ranks + r on rank r. The rows are empty.
Schedule looped(int ranks, int chunks);

/// Two stages a rank, down and back up: rank r has stages r and 2 * ranks - 1 - r. The first and the last stage meet on
/// rank 0, and the last rank hands on to itself. The rows are empty.
Schedule v_shaped(int ranks);

/// The row of a rank with two stages as it grows: the next microbatch of each stage and kind of pass is counted here.
struct GrowingRow {
  std::vector<Action>& actions;
  int down, up;            // the rank's stages
  int passes[2][3] = {};  // of each: forward, backward (whole or for the input), for the weights

  int& done(ActionKind kind, int stage) {
    return passes[stage == up][kind == ActionKind::F ? 0 : kind == ActionKind::W ? 2 : 1];
  }
  void add(ActionKind kind, int stage) { actions.push_back({kind, stage, done(kind, stage)++}); }
};
/// One that is still empty: the rank's, of a schedule that is v_shaped().
GrowingRow growing_row(Schedule& schedule, int rank);

/// The same orders for the first `microbatches` alone. Microbatches do not depend on each other, so what is left of a
/// schedule that ends, ends too, and holds no more.
Schedule first_microbatches(Schedule schedule, int microbatches);

}  // namespace orthant

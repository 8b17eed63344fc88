// Assignments of stages to pipeline ranks, with empty rows for a schedule to fill.
#pragma once

#include "schedule/schedule.h"

namespace orthant {

/// `chunks` stages per rank, assigned round-robin: rank r has stages c * ranks + r for each c < chunks. The rows are
/// empty.
Schedule round_robin_stages(int ranks, int chunks);

/// Two stages per rank in a V shape: rank r has stages r and 2 * ranks - 1 - r. So rank 0 has the first and the last
/// stage, and the two stages of the last rank are neighbors. The rows are empty.
Schedule v_shaped_stages(int ranks);

/// The row of a rank with two stages while a generator fills it. It counts the passes of each stage and kind, so that
/// add() appends the next microbatch.
struct RowBuilder {
  std::vector<Action>& actions;
  int down, up;            // the rank's stages: r and 2 * ranks - 1 - r
  int passes[2][3] = {};  // number of passes by stage (down, up) and kind (F; B or I; W)

  int& done(ActionKind kind, int stage) {
    return passes[stage == up][kind == ActionKind::F ? 0 : kind == ActionKind::W ? 2 : 1];
  }
  void add(ActionKind kind, int stage) { actions.push_back({kind, stage, done(kind, stage)++}); }
};
/// The empty row of the rank in a schedule made by v_shaped_stages().
RowBuilder make_row_builder(Schedule& schedule, int rank);

/// Removes all Actions of microbatches from `microbatches` on. Microbatches do not depend on each other, so the rest of
/// a schedule that terminates also terminates, and holds no more activations.
Schedule first_microbatches(Schedule schedule, int microbatches);

}  // namespace orthant

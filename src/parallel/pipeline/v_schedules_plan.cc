// Generates ZB-V row by row, and V-Half and V-Min from building blocks.
#include "parallel/pipeline/v_schedules_plan.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "parallel/pipeline/building_block_plan.h"
#include "parallel/pipeline/stages_plan.h"

namespace orthant {
namespace {

/// Number of microbatches, with two forwards on each rank, that cover `extra_warmup_forwards` extra forwards.
int whole_microbatches(int extra_warmup_forwards) { return (extra_warmup_forwards + 1) / 2; }

/// Fills one row of ZB-V for m microbatches, where m must be at least 2 ranks - 1 + more. `more` is the number of extra
/// warm-up microbatches.
void zb_v_row(RowBuilder row, int rank, int ranks, int m, int more) {
  using enum ActionKind;
  const int a = row.down, b = row.up;
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) row.add(F, a);
  for (int i = 0; i < rank + more; ++i) row.add(F, b), row.add(F, a);
  for (int i = 0; i < ranks - rank; ++i) row.add(F, b), row.add(I, b), row.add(W, b);
  while (row.done(F, b) < row.done(F, a) || row.done(F, a) < m) {
    if (row.done(F, a) < m) row.add(F, a);
    row.add(I, a), row.add(W, a), row.add(F, b), row.add(I, b), row.add(W, b);
  }
  for (int i = 0; i < rank + more; ++i) row.add(I, a), row.add(I, b);
  for (int i = 0; i < ranks - rank; ++i) row.add(I, a), row.add(W, a);
  for (const int stage : {b, a})
    while (row.done(W, stage) < m) row.add(W, stage);
}

/// Start slots of the first microbatch's F and I on rank r. "down" is stage r, "up" is stage 2 * ranks - 1 - r.
struct Start {
  int down_F, up_F, up_I, down_I;
};

template <typename StartOn>
Schedule repeat_v(int ranks, int microbatches, const Durations& durations, int extra_warmup_forwards,
                  StartOn start_on) {
  ORTHANT_CHECK(extra_warmup_forwards >= 0, extra_warmup_forwards);
  BuildingBlock block{.stages = v_shaped_stages(ranks), .interval = 6, .forward = {}, .backward = {}};
  block.forward.resize(static_cast<size_t>(2 * ranks));
  block.backward.resize(static_cast<size_t>(2 * ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const Start start = start_on(rank);
    const size_t down = static_cast<size_t>(rank), up = static_cast<size_t>(2 * ranks - 1 - rank);
    block.forward[down] = start.down_F;
    block.forward[up] = start.up_F;
    block.backward[up] = start.up_I + block.interval * whole_microbatches(extra_warmup_forwards);
    block.backward[down] = start.down_I + block.interval * whole_microbatches(extra_warmup_forwards);
  }
  return repeat_building_block(block, microbatches, durations);
}

}  // namespace

Schedule zb_v(int ranks, int microbatches, int extra_warmup_forwards) {
  ORTHANT_CHECK(microbatches >= 1 && extra_warmup_forwards >= 0, microbatches, extra_warmup_forwards);
  Schedule out = v_shaped_stages(ranks);
  const int more = whole_microbatches(extra_warmup_forwards);
  for (int rank = 0; rank < ranks; ++rank)
    zb_v_row(make_row_builder(out, rank), rank, ranks, std::max(microbatches, 2 * ranks - 1 + more), more);
  return first_microbatches(std::move(out), microbatches);
}

Schedule v_half(int ranks, int microbatches, const Durations& durations, int extra_warmup_forwards) {
  const int p = ranks, turn = p % 2 == 0 ? 3 : 0;  // idle slots of rank 0 between F and I of the last stage
  return repeat_v(p, microbatches, durations, extra_warmup_forwards, [&](int r) -> Start {
    return {2 * r, 3 * p - 2 - r, 3 * p - 1 + turn + 2 * r, 6 * p - 2 + turn - r};
  });
}

Schedule v_min(int ranks, int microbatches, const Durations& durations, int extra_warmup_forwards) {
  const int p = ranks, turn = p % 3 == 0 ? 2 : 0;
  return repeat_v(p, microbatches, durations, extra_warmup_forwards, [&](int r) -> Start {
    return {r, 2 * p - 1 - r, 2 * p + turn + r, 4 * p + turn - 1 - r};
  });
}

}  // namespace orthant

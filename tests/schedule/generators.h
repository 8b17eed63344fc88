// Schedules to test with: random legal orders, and Passes for what is not computation. The published schedules and
// their messages are the real ones.
#pragma once

#include <algorithm>
#include <vector>

#include "parallel/pipeline/gpipe_plan.h"
#include "parallel/pipeline/messages_plan.h"
#include "parallel/pipeline/one_f_one_b_plan.h"
#include "parallel/pipeline/stages_plan.h"
#include "parallel/pipeline/zero_bubble_plan.h"
#include "schedule/schedule.h"
#include "tests/support/random.h"

namespace orthant {

/// Any legal order: stages on random ranks (each rank has one at least), each backward whole or split at random.
inline Schedule random_schedule(Random& random, int ranks, int stages, int microbatches) {
  Schedule out = looped(ranks, 1);
  for (int stage = ranks; stage < stages; ++stage) out.stage_owner.push_back(random.below(ranks));
  for (int stage = stages; stage-- > 1;) {
    const int other = random.below(stage + 1);
    std::swap(out.stage_owner[static_cast<size_t>(stage)], out.stage_owner[static_cast<size_t>(other)]);
  }
  std::vector<Action> ready;
  for (int m = 0; m < microbatches; ++m) ready.push_back({ActionKind::F, 0, m});
  while (!ready.empty()) {
    const size_t pick = static_cast<size_t>(random.below(static_cast<int>(ready.size())));
    const Action action = ready[pick];
    ready.erase(ready.begin() + static_cast<int>(pick));
    out.rows[static_cast<size_t>(out.stage_owner[static_cast<size_t>(action.stage)])].push_back(action);
    const auto backward = [&](int stage) {
      ready.push_back({random.below(2) == 0 ? ActionKind::B : ActionKind::I, stage, action.microbatch});
    };
    if (action.kind == ActionKind::F) {
      if (action.stage + 1 < stages)
        ready.push_back({ActionKind::F, action.stage + 1, action.microbatch});
      else
        backward(action.stage);
    } else if (action.kind != ActionKind::W) {
      if (action.kind == ActionKind::I) ready.push_back({ActionKind::W, action.stage, action.microbatch});
      if (action.stage > 0) backward(action.stage - 1);
    }
  }
  return out;
}

/// A Pass: gathers each stage's weights at its first computation and drops them after its last.
inline Schedule with_weights(Schedule schedule) {
  for (auto& row : schedule.rows) {
    std::vector<Action> gathered;
    for (size_t i = 0; i < row.size(); ++i) {
      const auto computes = [&](const Action& other) {
        return other.stage == row[i].stage && facts(other.kind).lane == Lane::compute;
      };
      const auto here = row.begin() + static_cast<int>(i);
      if (computes(*here) && std::none_of(row.begin(), here, computes))
        gathered.push_back({ActionKind::UNSHARD, row[i].stage, -1});
      gathered.push_back(row[i]);
      if (computes(*here) && std::none_of(here + 1, row.end(), computes))
        gathered.push_back({ActionKind::RESHARD, row[i].stage, -1});
    }
    row = std::move(gathered);
  }
  return schedule;
}

}  // namespace orthant

// Schedules to test with: GPipe, 1F1B, ZB-H1, random legal orders, and communication added by the sender.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "schedule/schedule.h"
#include "tests/support/random.h"

namespace orthant {

inline Schedule stage_per_rank(int ranks) {
  Schedule out{.rows = std::vector<std::vector<Action>>(static_cast<size_t>(ranks)), .stage_owner = {}};
  for (int rank = 0; rank < ranks; ++rank) out.stage_owner.push_back(rank);
  return out;
}

inline Schedule gpipe(int ranks, int microbatches) {
  Schedule out = stage_per_rank(ranks);
  for (int r = 0; r < ranks; ++r) {
    auto& row = out.rows[static_cast<size_t>(r)];
    for (int m = 0; m < microbatches; ++m) row.push_back({ActionKind::F, r, m});
    for (int m = 0; m < microbatches; ++m) row.push_back({ActionKind::B, r, m});
  }
  return out;
}

inline Schedule one_f_one_b(int ranks, int microbatches) {
  Schedule out = stage_per_rank(ranks);
  for (int r = 0; r < ranks; ++r) {
    auto& row = out.rows[static_cast<size_t>(r)];
    const int warm_up = std::min(microbatches, ranks - 1 - r);
    for (int m = 0; m < warm_up; ++m) row.push_back({ActionKind::F, r, m});
    for (int m = 0; m < microbatches; ++m) {
      if (warm_up + m < microbatches) row.push_back({ActionKind::F, r, warm_up + m});
      row.push_back({ActionKind::B, r, m});
    }
  }
  return out;
}

inline Schedule zb_h1(int ranks, int microbatches) {
  Schedule out = stage_per_rank(ranks);
  for (int r = 0; r < ranks; ++r) {
    auto& row = out.rows[static_cast<size_t>(r)];
    int forwards = 0, weights = 0;
    while (forwards < std::min(microbatches, ranks - r)) row.push_back({ActionKind::F, r, forwards++});
    for (int m = 0; m < microbatches; ++m) {
      row.push_back({ActionKind::I, r, m});
      if (m >= r) row.push_back({ActionKind::W, r, weights++});
      if (forwards < microbatches) row.push_back({ActionKind::F, r, forwards++});
    }
    while (weights < microbatches) row.push_back({ActionKind::W, r, weights++});
  }
  return out;
}

/// Any legal order: stages on random ranks (each rank has one at least), each backward whole or split at random.
inline Schedule random_schedule(Random& random, int ranks, int stages, int microbatches) {
  Schedule out = stage_per_rank(ranks);
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

/// A Pass: carries the rows out, and whoever makes a result that another rank needs puts the SEND into its own row and
/// the RECV into the other's, so that both sides have one order.
inline Schedule with_messages(const Schedule& in) {
  Schedule out{.rows = std::vector<std::vector<Action>>(in.rows.size()), .stage_owner = in.stage_owner};
  const int stages = stage_count(in);
  std::vector<size_t> next(in.rows.size(), 0);
  std::set<std::tuple<bool, int, int>> there;  // forward, stage, microbatch whose input is there
  const auto owner = [&](int stage) { return static_cast<size_t>(in.stage_owner[static_cast<size_t>(stage)]); };
  const auto can = [&](const Action& action) {
    const bool forward = action.kind == ActionKind::F;
    if (action.kind == ActionKind::W || action.stage == (forward ? 0 : stages - 1)) return true;
    return there.contains({forward, action.stage, action.microbatch});
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < in.rows.size(); ++rank) {
      if (next[rank] == in.rows[rank].size() || !can(in.rows[rank][next[rank]])) continue;
      const Action action = in.rows[rank][next[rank]++];
      moved = true;
      out.rows[rank].push_back(action);
      const bool forward = action.kind == ActionKind::F;
      const int to = action.stage + (forward ? 1 : -1);
      if (action.kind == ActionKind::W || to < 0 || to >= stages) continue;
      there.insert({forward, to, action.microbatch});
      if (owner(to) == rank) continue;
      out.rows[rank].push_back({forward ? ActionKind::SEND_F : ActionKind::SEND_B, action.stage, action.microbatch});
      out.rows[owner(to)].push_back({forward ? ActionKind::RECV_F : ActionKind::RECV_B, to, action.microbatch});
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

/// A Pass: reduces each stage's buckets at the end of its rank's row.
inline Schedule with_reductions(Schedule schedule, const std::vector<int>& buckets) {
  for (size_t stage = 0; stage < schedule.stage_owner.size(); ++stage)
    for (int bucket = buckets[stage]; bucket-- > 0;)
      schedule.rows[static_cast<size_t>(schedule.stage_owner[stage])].push_back(
          {ActionKind::REDUCE, static_cast<int>(stage), bucket});
  return schedule;
}

}  // namespace orthant

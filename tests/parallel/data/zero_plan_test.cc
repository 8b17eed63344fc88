// Gathers and releases of sharded weights in a row: every pass finds its weights, they are gathered one pass ahead, and
// with Reshard::microbatch at most two units are gathered. Controls: rows without one Action, and without prefetch.
#include "parallel/data/zero_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace orthant::zero_plan_test {
namespace {

using enum ActionKind;

// The units of a model of `blocks` blocks: the embedding (0), the blocks, the last norm with the head. With `tied`, the
// loss also reads the embedding's table.
ShardedUnits units_of(int blocks, bool tied) {
  ShardedUnits units;
  for (int stage = 0; stage < blocks + 2; ++stage) units.forward.push_back({stage});
  units.backward = units.forward;
  if (tied) units.forward.back().push_back(0);
  return units;
}

std::vector<Action> without_gathers(std::vector<Action> row) {
  std::erase_if(row, [](const Action& action) { return action.kind == UNSHARD || action.kind == RESHARD; });
  return row;
}

// The row of passes of a rank without a pipeline, for this number of microbatches.
std::vector<Action> passes(int blocks, int microbatches, bool split) {
  std::vector<Action> row;
  for (int m = 0; m < microbatches; ++m) {
    for (int stage = 0; stage < blocks + 2; ++stage) row.push_back({F, stage, m});
    for (int stage = blocks + 2; stage-- > 0;) row.push_back({split ? I : B, stage, m});
    for (int stage = blocks + 2; stage-- > 0 && split;) row.push_back({W, stage, m});
  }
  return row;
}

// A row whose passes have a random order that keeps each F before its B.
std::vector<Action> shuffled(int blocks, int microbatches, std::mt19937& random) {
  std::vector<Action> row = passes(blocks, microbatches, false);
  std::ranges::shuffle(row, random);
  std::ranges::stable_sort(row, {}, [&](const Action& action) { return action.microbatch / 2; });
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i].kind != B) continue;
    const auto forward = std::ranges::find(row, Action{F, row[i].stage, row[i].microbatch});
    if (forward - row.begin() > static_cast<std::ptrdiff_t>(i))
      std::iter_swap(forward, row.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return row;
}

struct Walk {
  bool every_pass_has_its_weights = true;
  size_t most_gathered = 0;
  int not_prefetched = 0;  // units gathered directly before the pass that reads them, the first pass left out
};
Walk walk(const std::vector<Action>& row, const ShardedUnits& units) {
  Walk found;
  std::set<int> gathered, since_last_pass;
  bool first = true;
  for (const Action& action : row) {
    if (action.kind == UNSHARD) {
      found.every_pass_has_its_weights &= gathered.insert(action.stage).second;
      since_last_pass.insert(action.stage);
    } else if (action.kind == RESHARD) {
      found.every_pass_has_its_weights &= gathered.erase(action.stage) == 1;
    } else if (reads_weights(action)) {
      for (const int unit : units.units_of(action)) {
        found.every_pass_has_its_weights &= gathered.contains(unit);
        found.not_prefetched += !first && since_last_pass.contains(unit) ? 1 : 0;
      }
      since_last_pass.clear();
      first = false;
    }
    found.most_gathered = std::max(found.most_gathered, gathered.size());
  }
  found.every_pass_has_its_weights &= gathered.empty();
  return found;
}

TEST(AddGathers, GatherEveryUnitOnePassAheadAndAtMostTwo) {
  for (const bool tied : {false, true}) {
    for (const bool split : {false, true}) {
      for (const int microbatches : {1, 3}) {
        const ShardedUnits units = units_of(4, tied);
        const std::vector<Action> row = passes(4, microbatches, split);
        for (const Reshard reshard : {Reshard::never, Reshard::step, Reshard::microbatch}) {
          const std::vector<Action> out = add_gathers(row, units, reshard);
          const Walk found = walk(out, units);
          EXPECT_TRUE(found.every_pass_has_its_weights);
          EXPECT_EQ(without_gathers(out), row);
          EXPECT_TRUE(reshard != Reshard::microbatch || found.most_gathered <= kMostGatheredUnits);
          // A unit that one pass frees and the next one reads cannot be gathered ahead: with microbatch the head after
          // its forward, with never and microbatch the embedding after its backward. A tied head reads a third unit.
          const int again = reshard == Reshard::step    ? 0
                            : reshard == Reshard::never ? microbatches - 1
                                                        : 2 * microbatches - 1 + (tied ? microbatches : 0);
          EXPECT_LE(found.not_prefetched, again) << tied << split << microbatches << static_cast<int>(reshard);
        }
      }
    }
  }
}

TEST(AddGathers, HoldForRowsInAnyOrder) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const ShardedUnits units = units_of(3, round % 2 == 0);
    const std::vector<Action> row = shuffled(3, 1 + round % 5, random);
    for (const Reshard reshard : {Reshard::never, Reshard::step, Reshard::microbatch}) {
      const std::vector<Action> out = add_gathers(row, units, reshard);
      const Walk found = walk(out, units);
      EXPECT_TRUE(found.every_pass_has_its_weights);
      EXPECT_EQ(without_gathers(out), row);
      EXPECT_TRUE(reshard != Reshard::microbatch || found.most_gathered <= kMostGatheredUnits);
    }
  }
}

TEST(AddGathersControl, MissingActionsAndMissingPrefetchAreSeen) {
  const ShardedUnits units = units_of(4, true);
  const std::vector<Action> row = add_gathers(passes(4, 2, false), units, Reshard::microbatch);
  for (const ActionKind kind : {UNSHARD, RESHARD}) {
    std::vector<Action> broken = row;
    broken.erase(std::ranges::find(broken, Action{kind, 2}));
    EXPECT_FALSE(walk(broken, units).every_pass_has_its_weights);
  }
  std::vector<Action> late;  // every UNSHARD directly before the pass that reads the unit
  std::vector<Action> waiting;
  for (const Action& action : row) {
    if (action.kind == UNSHARD) {
      waiting.push_back(action);
      continue;
    }
    for (const Action& unshard : waiting) {
      const std::vector<int>& read = reads_weights(action) ? units.units_of(action) : std::vector<int>();
      if (std::ranges::find(read, unshard.stage) != read.end()) late.push_back(unshard);
    }
    std::erase_if(waiting, [&](const Action& unshard) {
      return !late.empty() && std::ranges::find(late, unshard) != late.end();
    });
    late.push_back(action);
  }
  EXPECT_GT(walk(late, units).not_prefetched, walk(row, units).not_prefetched);
}

}  // namespace
}  // namespace orthant::zero_plan_test

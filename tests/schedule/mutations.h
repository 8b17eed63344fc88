// Random mutations of a schedule, which validate() must detect if they break it.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "tests/support/random.h"

namespace orthant {

struct Mutant {
  Schedule schedule;
  std::string what;  // the mutation and the Action that it changed
};

/// Drops, duplicates, swaps or moves a random Action, or changes its kind or number.
inline Mutant mutated(Random& random, Schedule schedule) {
  size_t rank = 0;
  do rank = static_cast<size_t>(random.below(static_cast<int>(schedule.rows.size())));
  while (schedule.rows[rank].empty());
  auto& row = schedule.rows[rank];
  const int n = static_cast<int>(row.size());
  const int at = random.below(n);
  Action& action = row[static_cast<size_t>(at)];
  const std::string what = to_string(action);
  switch (random.below(6)) {
    case 0:
      row.erase(row.begin() + at);
      return {schedule, "dropped " + what};
    case 1: {
      const Action copy = action;
      row.insert(row.begin() + random.below(n + 1), copy);
      return {schedule, "twice " + what};
    }
    case 2: {
      const int other = random.below(n);
      std::swap(row[static_cast<size_t>(at)], row[static_cast<size_t>(other)]);
      return {schedule, "swapped " + what};
    }
    case 3:
      action.kind = static_cast<ActionKind>(random.below(static_cast<int>(kActionKinds)));
      return {schedule, "kind of " + what};
    case 4:
      action.microbatch = random.below(5) - 1;
      return {schedule, "number of " + what};
    default: {
      const Action moved = action;
      row.erase(row.begin() + at);
      auto& other = schedule.rows[static_cast<size_t>(random.below(static_cast<int>(schedule.rows.size())))];
      other.insert(other.begin() + random.below(static_cast<int>(other.size()) + 1), moved);
      return {schedule, "moved " + what};
    }
  }
}

}  // namespace orthant

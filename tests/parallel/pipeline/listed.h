// Writes schedules in the notation of the papers' listings, so that tests can compare them with published orders. There
// is one line per rank, and microbatches count from 1. If a rank has two stages, they are a and b. B also stands for I,
// the half of the backward for the input. i and e are the passes of the input layer, E and EB.
// Example: the row 0F0 7F0 7I0 of rank 0 of 4, with 8 stages, is "F1a F1b B1b".
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace orthant {

using Listing = std::vector<std::string>;

inline std::string listed(ActionKind kind) {
  using enum ActionKind;
  return kind == E ? "i" : kind == EB ? "e" : kind == TW ? "T" : kind == I ? "B" : std::string(facts(kind).text);
}

inline Listing listed(const Schedule& schedule) {
  Listing out;
  const int ranks = static_cast<int>(schedule.rows.size());
  const bool chunks = stage_count(schedule) > ranks;
  for (const auto& row : schedule.rows) {
    std::string& line = out.emplace_back();
    for (const Action& action : row) {
      line += (line.empty() ? "" : " ") + listed(action.kind) + std::to_string(action.microbatch + 1);
      if (chunks && !is_vocabulary(action)) line += action.stage < ranks ? "a" : "b";
    }
  }
  return out;
}

}  // namespace orthant

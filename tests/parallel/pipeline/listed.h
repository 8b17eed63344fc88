// Schedules in the words of the papers' listings, a line a rank, microbatches counted from 1: a and b are a rank's
// stages where it has two; B is also the half for the input, with W apart; i and e are the input layer's passes.
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

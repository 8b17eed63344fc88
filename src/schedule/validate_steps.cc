// Checks of post-validated steps: SETTLE and STEP on every rank, and the Actions that may come before SETTLE.
#include <algorithm>

#include "schedule/barriers.h"
#include "schedule/checker.h"

namespace orthant {

using enum ActionKind;

void Checker::check_steps() {
  if (!steps_) return;
  const std::vector<int> first_stage = first_stages(schedule_);
  for (int rank = 0; rank < static_cast<int>(first_stage.size()); ++rank) {
    const int stage = std::max(0, first_stage[static_cast<size_t>(rank)]);
    const Action settle{SETTLE, stage}, step{STEP, stage};
    for (const Action& own : {settle, step})
      if (place_of(own).rank != rank || !has(own)) report("{} is missing ({})", to_string(own), name_(rank, -1));
    for (const Action& action : row(rank)) {
      if (is_step_action(action) && action != settle && action != step)
        report("{}: it goes with stage {}", at(action), stage);
      if (has(step) && &action == &row(rank).back() && action != step)
        report("{} comes after {}", at(action), at(step));
    }
  }
  if (found_.empty()) check_settled(first_stage);
}

void Checker::check_settled(const std::vector<int>& first_stage) {
  const auto settle_of = [&](const Action& action) {
    return Action{SETTLE, first_stage[static_cast<size_t>(owner(action.stage))]};
  };
  const auto comes_first = [&](const Action& action) {
    return place_of(action).index < place_of(settle_of(action)).index;
  };
  for (const auto& row : schedule_.rows)
    for (const Action& action : row) {
      if (action.kind == UNSHARD || action.kind == RESHARD || !comes_first(action)) continue;
      if (writes_gradients(schedule_, action)) report("{} comes before {}", at(action), at(settle_of(action)));
      if (is_message(action) && !comes_first(matching_message(action)))
        report("{} comes before {}, and {} after {}", at(action), at(settle_of(action)), at(matching_message(action)),
               at(settle_of(matching_message(action))));
    }
}

}  // namespace orthant

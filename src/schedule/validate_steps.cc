// Checks of post-validated steps: FINALIZE and STEP on every rank, and the Actions that may come before FINALIZE.
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
    const Action finalize{FINALIZE, stage}, step{STEP, stage};
    for (const Action& own : {finalize, step})
      if (position_of(own).rank != rank || !has(own)) report("{} is missing ({})", to_string(own), name_(rank, -1));
    for (const Action& action : row(rank)) {
      if (is_step_action(action) && action != finalize && action != step)
        report("{}: its stage must be {}", at(action), stage);
      if (has(step) && &action == &row(rank).back() && action != step)
        report("{} comes after {}", at(action), at(step));
    }
  }
  if (found_.empty()) check_before_finalize(first_stage);
}

void Checker::check_before_finalize(const std::vector<int>& first_stage) {
  const auto finalize_of = [&](const Action& action) {
    return Action{FINALIZE, first_stage[static_cast<size_t>(owner(action.stage))]};
  };
  const auto comes_first = [&](const Action& action) {
    return position_of(action).index < position_of(finalize_of(action)).index;
  };
  for (const auto& row : schedule_.rows)
    for (const Action& action : row) {
      if (action.kind == UNSHARD || action.kind == RESHARD || !comes_first(action)) continue;
      if (writes_gradients(schedule_, action)) report("{} comes before {}", at(action), at(finalize_of(action)));
      if (is_message(action) && !comes_first(matching_message(action)))
        report("{} comes before {}, but {} comes after {}", at(action), at(finalize_of(action)),
               at(matching_message(action)), at(finalize_of(matching_message(action))));
    }
}

}  // namespace orthant

// Checks of the vocabulary layers: the same Actions on every rank, in the order of their collectives.
#include "schedule/barriers.h"
#include "schedule/checker.h"

namespace orthant {

using enum ActionKind;

void Checker::check_vocabulary() {
  const VocabularyKinds passes = vocabulary_kinds(schedule_);
  if (passes.output.empty() && !passes.input) return;
  const std::vector<int> first_stage = first_stages(schedule_);
  for (int rank = 0; rank < static_cast<int>(first_stage.size()); ++rank) {
    const int stage = first_stage[static_cast<size_t>(rank)];
    if (stage < 0) {
      report("{} has no stage and therefore no shard of the vocabulary", name_(rank, -1));
      continue;
    }
    for (const Action& action : row(rank)) {
      if (!is_vocabulary(action)) continue;
      if (action.stage != stage) report("{}: the stage of its vocabulary shard must be {}", at(action), stage);
      if (action.kind == TW && passes.output.back() == T) report("{}: it must be T, as on other ranks", at(action));
    }
    check_vocabulary(rank, stage, passes.output);
    if (passes.input) check_vocabulary(rank, stage, {E, EB});
    if (!passes.output.empty() && owner(stages_ - 1) == rank) check_increasing(rank, F, stages_ - 1);
    if (passes.input && owner(0) == rank) check_increasing(rank, B, 0);
  }
}

void Checker::check_vocabulary(int rank, int stage, const std::vector<ActionKind>& kinds) {
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (int m = 0; m < microbatches_; ++m) {
      const Action action{kinds[i], stage, m}, other{kinds[i == 0 ? 1 : i - 1], stage, m};
      if (!has(action))
        report("{} is missing {}", to_string(action), where_missing(i == 0 ? "before" : "after", other));
      if (i > 0 && has(action) && has(other)) demand_order(other, action);
    }
    check_increasing(rank, kinds[i], stage);
  }
}

void Checker::check_increasing(int rank, ActionKind kind, int stage) {
  const Action* last = nullptr;
  for (const Action& action : row(rank)) {
    const bool counts = action.kind == kind || (kind == B && action.kind == I);
    if (!counts || action.stage != stage) continue;
    if (last != nullptr && last->microbatch > action.microbatch)
      report("{} comes after {}: microbatches must increase here", at(action), at(*last));
    last = &action;
  }
}

}  // namespace orthant

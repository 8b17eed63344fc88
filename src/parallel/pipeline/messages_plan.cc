#include "parallel/pipeline/messages_plan.h"

#include "base/errors.h"
#include "schedule/barriers.h"

namespace orthant {

Schedule add_messages(const Schedule& in) {
  Schedule out{.rows = std::vector<std::vector<Action>>(in.rows.size()), .stage_owner = in.stage_owner};
  const int stages = stage_count(in), microbatches = microbatch_count(in);
  ORTHANT_CHECK(static_cast<int>(in.stage_owner.size()) == stages, in.stage_owner.size(), stages);
  const auto owner = [&](int stage) { return static_cast<size_t>(in.stage_owner[static_cast<size_t>(stage)]); };
  // By direction, stage and microbatch: whether the input of F, and of B or I, is there.
  std::vector<char> there(static_cast<size_t>(2 * stages) * static_cast<size_t>(microbatches), 0);
  const auto input = [&](bool forward, int stage, int m) -> char& {
    return there[static_cast<size_t>(2 * stage + forward) * static_cast<size_t>(microbatches) + static_cast<size_t>(m)];
  };
  Barriers barriers(in);
  std::vector<size_t> next(in.rows.size(), 0);
  // Every rank does one Action a round: near the order in which equal passes run.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < in.rows.size(); ++rank) {
      if (next[rank] == in.rows[rank].size()) continue;
      const Action action = in.rows[rank][next[rank]];
      ORTHANT_CHECK(!is_message(action), to_string(action), "messages are there already");
      const bool forward = action.kind == ActionKind::F;
      const bool carries = forward || action.kind == ActionKind::B || action.kind == ActionKind::I;
      const int from = action.stage - (forward ? 1 : -1), to = action.stage + (forward ? 1 : -1);
      const bool waits = carries && from >= 0 && from < stages && !input(forward, action.stage, action.microbatch);
      barriers.come(action);
      if (waits || !barriers.met(action)) continue;
      ++next[rank];
      moved = true;
      barriers.done(action);
      out.rows[rank].push_back(action);
      if (!carries || to < 0 || to >= stages) continue;
      input(forward, to, action.microbatch) = 1;
      if (owner(to) == rank) continue;
      out.rows[rank].push_back({forward ? ActionKind::SEND_F : ActionKind::SEND_B, action.stage, action.microbatch});
      out.rows[owner(to)].push_back({forward ? ActionKind::RECV_F : ActionKind::RECV_B, to, action.microbatch});
    }
  }
  for (size_t rank = 0; rank < next.size(); ++rank)
    if (next[rank] < in.rows[rank].size())
      throw LogicError(fmt::format("messages for a schedule that stops: rank {} waits at its Action {}, {}", rank,
                                   next[rank], to_string(in.rows[rank][next[rank]])));
  return out;
}

}  // namespace orthant

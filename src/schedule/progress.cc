#include "schedule/progress.h"

#include <algorithm>
#include <deque>

#include "schedule/barriers.h"

namespace orthant {
namespace {

using enum ActionKind;

class Walk {
 public:
  explicit Walk(const Schedule& schedule)
      : schedule_(schedule),
        stages_(stage_count(schedule)),
        microbatches_(static_cast<size_t>(microbatch_count(schedule))),
        barriers_(schedule),
        input_(2 * static_cast<size_t>(stages_) * microbatches_, 0),
        next_(schedule.rows.size(), 0),
        queued_(schedule.rows.size(), 0) {
    for (const auto& row : schedule.rows)
      for (const Action& action : row) messages_ |= is_message(action);
  }

  std::vector<Stop> run() {
    for (size_t rank = 0; rank < next_.size(); ++rank) wake(static_cast<int>(rank));
    while (!ready_.empty()) {
      const int rank = ready_.front();
      ready_.pop_front();
      queued_[static_cast<size_t>(rank)] = 0;
      while (step(rank)) {
      }
    }
    std::vector<Stop> out;
    for (int rank = 0; rank < static_cast<int>(next_.size()); ++rank)
      if (const Action* action = at(rank)) out.push_back({rank, index(rank), needed(*action)});
    return out;
  }

 private:
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }
  int index(int rank) const { return static_cast<int>(next_[static_cast<size_t>(rank)]); }
  const Action* at(int rank) const {
    const auto& row = schedule_.rows[static_cast<size_t>(rank)];
    const size_t next = next_[static_cast<size_t>(rank)];
    return next < row.size() ? &row[next] : nullptr;
  }
  char& input(bool forward, int stage, int m) {
    return input_[static_cast<size_t>(2 * stage + forward) * microbatches_ + static_cast<size_t>(m)];
  }
  void wake(int rank) {
    if (queued_[static_cast<size_t>(rank)]) return;
    queued_[static_cast<size_t>(rank)] = 1;
    ready_.push_back(rank);
  }

  void wake_all() {
    for (size_t rank = 0; rank < next_.size(); ++rank) wake(static_cast<int>(rank));
  }

  bool waits(const Action& action) {
    if (!barriers_.met(action)) return true;
    if (is_message(action)) {
      const Action other = other_end(action), *current = at(owner(other.stage));
      return current == nullptr || *current != other;
    }
    const auto [kind, stage, m] = action;
    if (kind == F) return stage > 0 && !input(true, stage, m);
    return (kind == B || kind == I) && stage + 1 < stages_ && !input(false, stage, m);
  }

  /// What an Action that waits waits for.
  Action needed(const Action& action) const {
    if (is_message(action)) return other_end(action);
    if (!barriers_.met(action)) return standing(barriers_.needed(action));
    const bool forward = action.kind == F;
    const int before = action.stage + (forward ? -1 : 1), m = action.microbatch;
    if (messages_ && owner(before) != owner(action.stage)) return {forward ? RECV_F : RECV_B, action.stage, m};
    return standing({forward ? F : B, before, m});
  }

  /// The I where there is no B.
  Action standing(Action action) const {
    const auto& row = schedule_.rows[static_cast<size_t>(owner(action.stage))];
    if (action.kind == B && std::find(row.begin(), row.end(), action) == row.end()) action.kind = I;
    return action;
  }

  bool step(int rank) {
    const Action* action = at(rank);
    if (action == nullptr) return false;
    if (barriers_.come(*action)) wake_all();
    if (waits(*action)) return false;
    ++next_[static_cast<size_t>(rank)];
    if (barriers_.done(*action)) wake_all();
    if (is_message(*action)) {
      const Action other = other_end(*action);
      const Action& received = facts(action->kind).lane == Lane::send ? other : *action;
      input(received.kind == RECV_F, received.stage, received.microbatch) = 1;
      ++next_[static_cast<size_t>(owner(other.stage))];
      wake(owner(other.stage));
    } else if (action->kind == F || action->kind == B || action->kind == I) {
      const bool forward = action->kind == F;
      const int after = action->stage + (forward ? 1 : -1);
      const bool there = after >= 0 && after < stages_ && (!messages_ || owner(after) == rank);
      if (there) input(forward, after, action->microbatch) = 1;
      if (there && owner(after) != rank) wake(owner(after));
    }
    return true;
  }

  const Schedule& schedule_;
  const int stages_;
  const size_t microbatches_;
  Barriers barriers_;
  std::vector<char> input_;  // of forwards and backwards, by stage and microbatch: whether it is there
  std::vector<size_t> next_;
  std::vector<char> queued_;
  std::deque<int> ready_;
  bool messages_ = false;
};

}  // namespace

std::vector<Stop> stops(const Schedule& schedule) { return Walk(schedule).run(); }

}  // namespace orthant

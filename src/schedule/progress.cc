// Carries out the rows of a schedule with a queue of ranks that may be able to continue.
#include "schedule/progress.h"

#include <algorithm>
#include <deque>

#include "schedule/barriers.h"
#include "schedule/results.h"

namespace orthant {
namespace {

using enum ActionKind;

class Walk {
 public:
  explicit Walk(const Schedule& schedule)
      : schedule_(schedule),
        barriers_(schedule),
        there_(stage_count(schedule), microbatch_count(schedule), 0),
        next_(schedule.rows.size(), 0),
        finalized_(schedule.rows.size(), 0),
        stepped_(schedule.rows.size(), 0),
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
  void wake(int rank) {
    if (queued_[static_cast<size_t>(rank)]) return;
    queued_[static_cast<size_t>(rank)] = 1;
    ready_.push_back(rank);
  }

  void wake_all() {
    for (size_t rank = 0; rank < next_.size(); ++rank) wake(static_cast<int>(rank));
  }

  /// The rank that a FINALIZE or STEP waits for. The result may be -1 or the number of ranks; then it waits for none.
  int before(const Action& action) const { return owner(action.stage) + (action.kind == STEP ? -1 : 1); }
  std::vector<int>& done(ActionKind kind) { return kind == STEP ? stepped_ : finalized_; }

  bool waits(const Action& action) {
    if (!barriers_.met(action)) return true;
    if (is_message(action)) {
      const Action other = matching_message(action), *current = at(owner(other.stage));
      return current == nullptr || *current != other;
    }
    if (is_step_action(action)) {
      const auto own = static_cast<size_t>(owner(action.stage)), other = static_cast<size_t>(before(action));
      return other < next_.size() && done(action.kind)[other] <= done(action.kind)[own];
    }
    return produces_result(action) && there_.has(producer_of(action)) && !there_[action];
  }

  /// The Action that a waiting Action waits for.
  Action needed(const Action& action) const {
    if (is_message(action)) return matching_message(action);
    if (!barriers_.met(action)) return standing(barriers_.needed(action));
    if (is_step_action(action)) return {action.kind, first_stages(schedule_)[static_cast<size_t>(before(action))], -1};
    Action source = producer_of(action);
    if (messages_ && owner(source.stage) != owner(action.stage)) return recv_of(action);
    if (source.kind == I) source.kind = B;
    return standing(source);
  }

  /// The same Action, but I in place of a B that the schedule does not have.
  Action standing(Action action) const {
    const auto& row = schedule_.rows[static_cast<size_t>(owner(action.stage))];
    if (action.kind == B && std::find(row.begin(), row.end(), action) == row.end()) action.kind = I;
    return action;
  }

  bool step(int rank) {
    const Action* action = at(rank);
    if (action == nullptr) return false;
    if (barriers_.reach(*action)) wake_all();
    if (waits(*action)) return false;
    ++next_[static_cast<size_t>(rank)];
    if (barriers_.done(*action)) wake_all();
    if (is_step_action(*action)) {
      ++done(action->kind)[static_cast<size_t>(rank)];
      const int behind = 2 * rank - before(*action);
      if (behind >= 0 && behind < static_cast<int>(next_.size())) wake(behind);
    } else if (is_message(*action)) {
      const Action other = matching_message(*action);
      there_[facts(action->kind).stream == Stream::send ? other : *action] = 1;
      ++next_[static_cast<size_t>(owner(other.stage))];
      wake(owner(other.stage));
    } else if (produces_result(*action)) {
      const Action reader = consumer_of(*action);
      const bool there = there_.has(reader) && (!messages_ || owner(reader.stage) == rank);
      if (there) there_[reader] = 1;
      if (there && owner(reader.stage) != rank) wake(owner(reader.stage));
    }
    return true;
  }

  const Schedule& schedule_;
  Barriers barriers_;
  PerResult<char> there_;  // whether the input of the pass has arrived
  std::vector<size_t> next_;            // index of the next Action, by rank
  std::vector<int> finalized_, stepped_;  // number of FINALIZE, and of STEP, that are done, by rank
  std::vector<char> queued_;
  std::deque<int> ready_;
  bool messages_ = false;
};

}  // namespace

std::vector<Stop> stops(const Schedule& schedule) { return Walk(schedule).run(); }

}  // namespace orthant

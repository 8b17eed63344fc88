#include "schedule/validate.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

using enum ActionKind;

struct Place {
  int rank = -1;
  int index = -1;
};

class Checker {
 public:
  Checker(const Schedule& schedule, int microbatches, const std::vector<int>& buckets)
      : schedule_(schedule), microbatches_(microbatches), buckets_(buckets), stages_(stage_count(schedule)) {}

  std::vector<std::string> run() {
    if (!collect()) return found_;
    for (int stage = 0; stage < stages_; ++stage)
      for (int m = 0; m < microbatches_; ++m) check_pass(stage, m);
    check_messages();
    check_weights();
    check_reductions();
    if (found_.empty()) check_progress();
    return found_;
  }

 private:
  template <typename... Values>
  void report(fmt::format_string<Values...> format, Values&&... values) {
    found_.push_back(fmt::format(format, std::forward<Values>(values)...));
  }

  std::string at(const Action& action) const {
    const Place place = place_of(action);
    return fmt::format("{} (rank {}, Action {})", to_string(action), place.rank, place.index);
  }
  bool has(const Action& action) const { return places_.contains(key(action)); }
  Place place_of(const Action& action) const { return places_.at(key(action)); }
  static std::tuple<int, int, int> key(const Action& action) {
    return {static_cast<int>(action.kind), action.stage, action.microbatch};
  }
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }

  /// Notes where each Action stands; false where the schedule cannot be looked at any further.
  bool collect() {
    if (stages_ == 0 || static_cast<int>(schedule_.stage_owner.size()) != stages_) {
      report("the schedule has Actions on {} stages and owners for {}", stages_, schedule_.stage_owner.size());
      return false;
    }
    const int ranks = static_cast<int>(schedule_.rows.size());
    for (int stage = 0; stage < stages_; ++stage)
      if (owner(stage) < 0 || owner(stage) >= ranks) report("stage {} belongs to no rank", stage);
    for (int rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < schedule_.rows[static_cast<size_t>(rank)].size(); ++i)
        collect(schedule_.rows[static_cast<size_t>(rank)][i], {rank, static_cast<int>(i)});
    return found_.empty();
  }

  void collect(const Action& action, Place place) {
    const std::string name = fmt::format("{} (rank {}, Action {})", to_string(action), place.rank, place.index);
    const KindFacts& kind = facts(action.kind);
    if (action.stage < 0) {
      report("{} has no stage", name);
      return;
    }
    if (owner(action.stage) != place.rank)
      report("{}: stage {} stands on rank {}", name, action.stage, owner(action.stage));
    if (action.microbatch < (kind.counts == ThirdField::microbatch ? 0 : -1) ||
        (kind.counts == ThirdField::nothing && action.microbatch >= 0))
      report("{}: not a number for this kind", name);
    else if (kind.counts == ThirdField::microbatch && action.microbatch >= microbatches_)
      report("{}: there are microbatches 0 to {}", name, microbatches_ - 1);
    messages_ |= kind.lane == Lane::send || kind.lane == Lane::receive;
    reductions_ |= action.kind == REDUCE;
    if (kind.counts == ThirdField::nothing) return;
    if (!places_.try_emplace(key(action), place).second) report("{} stands twice, first as {}", name, at(action));
  }

  void demand_order(const Action& first, const Action& second) {
    if (place_of(first).rank == place_of(second).rank && place_of(first).index > place_of(second).index)
      report("{} comes before {}", at(second), at(first));
  }

  /// F, and B or I and W, of one microbatch on one stage.
  void check_pass(int stage, int m) {
    const Action f{F, stage, m}, b{B, stage, m}, i{I, stage, m}, w{W, stage, m};
    if (!has(f)) report("{} is missing", to_string(f));
    if (has(b) && (has(i) || has(w))) report("{} beside {}", at(b), at(has(i) ? i : w));
    if (!has(b) && !has(i) && !has(w)) report("{} is missing", to_string(b));
    if (!has(b) && has(i) != has(w)) report("{} is missing beside {}", to_string(has(i) ? w : i), at(has(i) ? i : w));
    for (const Action& backward : {b, i, w})
      if (has(f) && has(backward)) demand_order(f, backward);
    if (has(i) && has(w)) demand_order(i, w);
  }

  /// What computes the gradient of the stage's input.
  Action backward_of(int stage, int m) const {
    const Action b{B, stage, m};
    return has(b) ? b : Action{I, stage, m};
  }

  void check_messages() {
    if (!messages_) return;
    std::set<std::tuple<int, int, int>> expected;
    for (int stage = 0; stage + 1 < stages_; ++stage) {
      if (owner(stage) == owner(stage + 1)) continue;
      for (int m = 0; m < microbatches_; ++m) {
        check_message({F, stage, m}, {SEND_F, stage, m}, {RECV_F, stage + 1, m}, {F, stage + 1, m});
        check_message(backward_of(stage + 1, m), {SEND_B, stage + 1, m}, {RECV_B, stage, m}, backward_of(stage, m));
        for (const ActionKind kind : {SEND_F, RECV_B}) expected.insert(key({kind, stage, m}));
        for (const ActionKind kind : {RECV_F, SEND_B}) expected.insert(key({kind, stage + 1, m}));
      }
    }
    for (const auto& row : schedule_.rows)
      for (const Action& action : row) {
        const Lane lane = facts(action.kind).lane;
        if ((lane == Lane::send || lane == Lane::receive) && !expected.contains(key(action)))
          report("{}: nothing crosses ranks there", at(action));
      }
    if (found_.empty()) check_message_order();
  }

  void check_message(const Action& made, const Action& sent, const Action& received, const Action& used) {
    for (const auto& [each, other] : {std::pair(sent, received), std::pair(received, sent)})
      if (!has(each)) report("{} is missing{}", to_string(each), has(other) ? " for " + at(other) : "");
    if (has(made) && has(sent)) demand_order(made, sent);
    if (has(received) && has(used)) demand_order(received, used);
  }

  /// Between two ranks messages travel in one order: the k-th sent has to be the k-th received.
  void check_message_order() {
    std::map<std::pair<int, int>, std::vector<Action>> sent, received;
    for (const auto& row : schedule_.rows)
      for (const Action& action : row) {
        const Lane lane = facts(action.kind).lane;
        const bool forward = action.kind == SEND_F || action.kind == RECV_F;
        if (lane == Lane::send) {
          const int to = action.stage + (forward ? 1 : -1);
          sent[{owner(action.stage), owner(to)}].push_back({forward ? RECV_F : RECV_B, to, action.microbatch});
        } else if (lane == Lane::receive) {
          received[{owner(action.stage + (forward ? -1 : 1)), owner(action.stage)}].push_back(action);
        }
      }
    for (const auto& [ranks, order] : sent) {
      const std::vector<Action>& other = received[ranks];
      const auto [expected, got] = std::mismatch(order.begin(), order.end(), other.begin(), other.end());
      if (expected != order.end() && got != other.end())
        report("{} takes the place of {}, which rank {} sends first", at(*got), at(*expected), ranks.first);
    }
  }

  void check_weights() {
    std::set<int> gathered;  // stages that have any UNSHARD
    for (const auto& row : schedule_.rows)
      for (const Action& action : row)
        if (action.kind == UNSHARD || action.kind == RESHARD) gathered.insert(action.stage);
    std::set<int> whole;
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank)
      for (size_t index = 0; index < schedule_.rows[rank].size(); ++index) {
        const Action& action = schedule_.rows[rank][index];
        const std::string name = fmt::format("{} (rank {}, Action {})", to_string(action), rank, index);
        const bool is_whole = whole.contains(action.stage);
        if (action.kind == UNSHARD) {
          if (is_whole) report("{}: the weights are gathered already", name);
          whole.insert(action.stage);
        } else if (action.kind == RESHARD) {
          if (!is_whole) report("{}: the weights are not gathered", name);
          whole.erase(action.stage);
        } else if (facts(action.kind).lane == Lane::compute && gathered.contains(action.stage) && !is_whole) {
          report("{}: the weights are not gathered there", name);
        }
      }
  }

  void check_reductions() {
    if (!reductions_ && buckets_.empty()) return;
    if (!buckets_.empty() && static_cast<int>(buckets_.size()) != stages_) {
      report("numbers of buckets for {} of {} stages", buckets_.size(), stages_);
      return;
    }
    for (int stage = 0; stage < stages_; ++stage) check_reductions(stage);
  }

  void check_reductions(int stage) {
    std::vector<Action> all;
    for (const Action& action : schedule_.rows[static_cast<size_t>(owner(stage))])
      if (action.kind == REDUCE && action.stage == stage) all.push_back(action);
    const Action for_all{REDUCE, stage, -1};
    if (has(for_all) && all.size() > 1) report("{} beside buckets of the stage", at(for_all));
    if (all.empty() && buckets_.empty()) report("{} is missing", to_string(for_all));
    int count = 0;  // of buckets
    for (const Action& action : all) count = std::max(count, action.microbatch + 1);
    if (!buckets_.empty()) {
      count = buckets_[static_cast<size_t>(stage)];
      for (const Action& action : all)
        if (action.microbatch >= count) report("{}: no such bucket", at(action));
    }
    for (int bucket = 0; bucket < count && !has(for_all); ++bucket)
      if (!has({REDUCE, stage, bucket})) report("{} is missing", to_string(Action{REDUCE, stage, bucket}));
    for (const Action& reduction : all)
      for (int m = 0; m < microbatches_; ++m)
        for (const Action& last : {Action{B, stage, m}, Action{W, stage, m}})
          if (has(last)) demand_order(last, reduction);
  }

  /// The Action whose end the next one of a row waits for, if that has not been done.
  const Action* missing(const Action& action, const std::set<std::tuple<int, int, int>>& done, Action& needed) const {
    const int m = action.microbatch;
    const bool backward = action.kind == B || action.kind == I;
    if (action.kind == F && action.stage > 0)
      needed = messages_ && owner(action.stage - 1) != owner(action.stage) ? Action{SEND_F, action.stage - 1, m}
                                                                           : Action{F, action.stage - 1, m};
    else if (backward && action.stage + 1 < stages_)
      needed = messages_ && owner(action.stage + 1) != owner(action.stage) ? Action{SEND_B, action.stage + 1, m}
                                                                           : backward_of(action.stage + 1, m);
    else
      return nullptr;
    return done.contains(key(needed)) ? nullptr : &needed;
  }

  /// Carries the rows out as far as they go.
  void check_progress() {
    std::set<std::tuple<int, int, int>> done;
    std::vector<size_t> next(schedule_.rows.size(), 0);
    Action needed;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < next.size(); ++rank) {
        const auto& row = schedule_.rows[rank];
        for (; next[rank] < row.size() && missing(row[next[rank]], done, needed) == nullptr; ++next[rank]) {
          done.insert(key(row[next[rank]]));
          moved = true;
        }
      }
    }
    for (size_t rank = 0; rank < next.size(); ++rank) {
      if (next[rank] == schedule_.rows[rank].size()) continue;
      const Action& action = schedule_.rows[rank][next[rank]];
      missing(action, done, needed);
      report("deadlock: rank {} waits at its Action {}, {}, for {} of rank {}", rank, next[rank], to_string(action),
             to_string(needed), owner(needed.stage));
    }
  }

  const Schedule& schedule_;
  const int microbatches_;
  const std::vector<int>& buckets_;
  const int stages_;
  bool messages_ = false, reductions_ = false;
  std::map<std::tuple<int, int, int>, Place> places_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> problems(const Schedule& schedule, int microbatches, const std::vector<int>& buckets) {
  return Checker(schedule, microbatches, buckets).run();
}

void validate(const Schedule& schedule, int microbatches, const std::vector<int>& buckets) {
  const std::vector<std::string> found = problems(schedule, microbatches, buckets);
  if (!found.empty()) throw LogicError("the schedule is not valid:\n  " + join(found, "\n  "));
}

}  // namespace orthant

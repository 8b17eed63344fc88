#include "schedule/validate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "schedule/barriers.h"
#include "schedule/progress.h"

namespace orthant {
namespace {

using enum ActionKind;

/// The kinds that count microbatches come first.
constexpr size_t kMicrobatchKinds = static_cast<size_t>(RECV_B) + 1;

struct Place {
  int rank = -1;
  int index = -1;
};

class Checker {
 public:
  Checker(const Schedule& schedule, int microbatches, const std::vector<int>& buckets, const PlaceName& place)
      : schedule_(schedule),
        microbatches_(microbatches),
        buckets_(buckets),
        stages_(stage_count(schedule)),
        name_(place ? place : by_rank) {}

  std::vector<std::string> run() {
    if (!collect()) return found_;
    for (int stage = 0; stage < stages_; ++stage)
      for (int m = 0; m < microbatches_; ++m) check_pass(stage, m);
    check_vocabulary();
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

  static std::string by_rank(int rank, int index) {
    return index < 0 ? fmt::format("rank {}", rank) : fmt::format("rank {}, Action {}", rank, index);
  }
  std::string named(const Action& action, Place place) const {
    return fmt::format("{} ({})", to_string(action), name_(place.rank, place.index));
  }
  std::string at(const Action& action) const { return named(action, place_of(action)); }

  /// What has a microbatch is in a table, what has a bucket in a map; each stands on the owner of its stage.
  Place place_of(const Action& action) const {
    if (facts(action.kind).counts == ThirdField::microbatch) return {owner(action.stage), indices_[cell(action)]};
    const auto found = bucket_indices_.find({action.stage, action.microbatch});
    return {owner(action.stage), found == bucket_indices_.end() ? -1 : found->second};
  }
  bool has(const Action& action) const { return place_of(action).index >= 0; }
  size_t cell(const Action& action) const {
    const size_t pass = static_cast<size_t>(action.stage) * static_cast<size_t>(microbatches_) +
                        static_cast<size_t>(action.microbatch);
    return pass * kMicrobatchKinds + static_cast<size_t>(action.kind);
  }
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }

  /// Notes where each Action stands; false where the schedule cannot be looked at any further.
  bool collect() {
    if (stages_ == 0 || static_cast<int>(schedule_.stage_owner.size()) != stages_) {
      report("the schedule has Actions on {} stages and owners for {}", stages_, schedule_.stage_owner.size());
      return false;
    }
    if (microbatches_ < 1) {
      report("{} microbatches", microbatches_);
      return false;
    }
    indices_.assign(static_cast<size_t>(stages_) * static_cast<size_t>(microbatches_) * kMicrobatchKinds, -1);
    const int ranks = static_cast<int>(schedule_.rows.size());
    for (int stage = 0; stage < stages_; ++stage)
      if (owner(stage) < 0 || owner(stage) >= ranks) report("stage {} belongs to no rank", stage);
    if (!found_.empty()) return false;
    for (int rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < schedule_.rows[static_cast<size_t>(rank)].size(); ++i)
        collect(schedule_.rows[static_cast<size_t>(rank)][i], {rank, static_cast<int>(i)});
    return found_.empty();
  }

  void collect(const Action& action, Place place) {
    const KindFacts& kind = facts(action.kind);
    if (action.stage < 0) return report("{} has no stage", named(action, place));
    if (owner(action.stage) != place.rank)
      return report("{}: stage {} stands on {}", named(action, place), action.stage, name_(owner(action.stage), -1));
    messages_ |= is_message(action);
    reductions_ |= action.kind == REDUCE;
    if (action.microbatch < (kind.counts == ThirdField::microbatch ? 0 : -1) ||
        (kind.counts == ThirdField::nothing && action.microbatch >= 0))
      return report("{}: not a number for this kind", named(action, place));
    if (kind.counts == ThirdField::microbatch && action.microbatch >= microbatches_)
      return report("{}: there are microbatches 0 to {}", named(action, place), microbatches_ - 1);
    if (kind.counts == ThirdField::nothing) return;
    if (has(action)) return report("{} stands twice, first as {}", named(action, place), at(action));
    (kind.counts == ThirdField::microbatch ? indices_[cell(action)]
                                           : bucket_indices_[{action.stage, action.microbatch}]) = place.index;
  }

  void demand_order(const Action& first, const Action& second) {
    if (place_of(first).rank == place_of(second).rank && place_of(first).index > place_of(second).index)
      report("{} comes before {}", at(second), at(first));
  }

  /// Where something that is missing should be: before or after another Action, if that is there.
  std::string beside(const char* side, const Action& other) const {
    return has(other) ? fmt::format("{} {}", side, at(other)) : fmt::format("({})", name_(owner(other.stage), -1));
  }

  /// F, and B or I and W, of one microbatch on one stage.
  void check_pass(int stage, int m) {
    const Action f{F, stage, m}, b{B, stage, m}, i{I, stage, m}, w{W, stage, m};
    if (!has(f)) report("{} is missing {}", to_string(f), beside("before", has(b) ? b : i));
    if (has(b) && (has(i) || has(w))) report("{} beside {}", at(b), at(has(i) ? i : w));
    if (!has(b) && !has(i) && !has(w)) report("{} is missing {}", to_string(b), beside("after", f));
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

  void check_vocabulary() {
    const VocabularyPasses passes = vocabulary_passes(schedule_);
    if (passes.output.empty() && !passes.input) return;
    const std::vector<int> first_stage = first_stages(schedule_);
    for (int rank = 0; rank < static_cast<int>(first_stage.size()); ++rank) {
      const int stage = first_stage[static_cast<size_t>(rank)];
      if (stage < 0) {
        report("{} has no stage, and so no part of the vocabulary", name_(rank, -1));
        continue;
      }
      for (const Action& action : schedule_.rows[static_cast<size_t>(rank)]) {
        if (!is_vocabulary(action)) continue;
        if (action.stage != stage) report("{}: its part of the vocabulary goes with stage {}", at(action), stage);
        if (action.kind == TW && passes.output.back() == T) report("{}: elsewhere it is T", at(action));
      }
      check_vocabulary(rank, stage, passes.output);
      if (passes.input) check_vocabulary(rank, stage, {E, EB});
      if (!passes.output.empty() && owner(stages_ - 1) == rank) check_increasing(rank, F, stages_ - 1);
      if (passes.input && owner(0) == rank) check_increasing(rank, B, 0);
    }
  }

  /// The kinds of one vocabulary layer on one rank: each microbatch once, in their order.
  void check_vocabulary(int rank, int stage, const std::vector<ActionKind>& kinds) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      for (int m = 0; m < microbatches_; ++m) {
        const Action action{kinds[i], stage, m}, other{kinds[i == 0 ? 1 : i - 1], stage, m};
        if (!has(action)) report("{} is missing {}", to_string(action), beside(i == 0 ? "before" : "after", other));
        if (i > 0 && has(action) && has(other)) demand_order(other, action);
      }
      check_increasing(rank, kinds[i], stage);
    }
  }

  /// All ranks issue a collective's microbatches in increasing order: where they stand in a row, that is theirs.
  void check_increasing(int rank, ActionKind kind, int stage) {
    const Action* last = nullptr;
    for (const Action& action : schedule_.rows[static_cast<size_t>(rank)]) {
      const bool counts = action.kind == kind || (kind == B && action.kind == I);
      if (!counts || action.stage != stage) continue;
      if (last != nullptr && last->microbatch > action.microbatch)
        report("{} comes after {}: microbatches go up here", at(action), at(*last));
      last = &action;
    }
  }

  void check_messages() {
    if (!messages_) return;
    for (int stage = 0; stage + 1 < stages_; ++stage) {
      if (owner(stage) == owner(stage + 1)) continue;
      for (int m = 0; m < microbatches_; ++m) {
        check_message({F, stage, m}, {SEND_F, stage, m}, {RECV_F, stage + 1, m}, {F, stage + 1, m});
        check_message(backward_of(stage + 1, m), {SEND_B, stage + 1, m}, {RECV_B, stage, m}, backward_of(stage, m));
      }
    }
    for (const auto& row : schedule_.rows)
      for (const Action& action : row) {
        if (!is_message(action)) continue;
        const int other = other_end(action).stage;
        if (other < 0 || other >= stages_ || owner(other) == owner(action.stage))
          report("{}: nothing crosses ranks there", at(action));
      }
    if (found_.empty()) check_message_order();
  }

  void check_message(const Action& made, const Action& sent, const Action& received, const Action& used) {
    const auto other = [&](const Action& action) { return has(action) ? ", for " + at(action) : ""; };
    if (!has(sent)) report("{} is missing {}{}", to_string(sent), beside("after", made), other(received));
    if (!has(received)) report("{} is missing {}{}", to_string(received), beside("before", used), other(sent));
    if (has(made) && has(sent)) demand_order(made, sent);
    if (has(received) && has(used)) demand_order(received, used);
  }

  /// Between two ranks messages travel in one order: the k-th sent has to be the k-th received.
  void check_message_order() {
    std::map<std::pair<int, int>, std::vector<Action>> sent, received;  // what is received, in both orders
    for (const auto& row : schedule_.rows)
      for (const Action& action : row) {
        if (!is_message(action)) continue;
        const Action other = other_end(action);
        if (facts(action.kind).lane == Lane::send)
          sent[{owner(action.stage), owner(other.stage)}].push_back(other);
        else
          received[{owner(other.stage), owner(action.stage)}].push_back(action);
      }
    for (const auto& [ranks, order] : sent) {
      const std::vector<Action>& other = received[ranks];
      const auto [expected, got] = std::mismatch(order.begin(), order.end(), other.begin(), other.end());
      if (expected != order.end() && got != other.end())
        report("{} takes the place of {}: {} is sent before {}", at(*got), at(*expected), at(other_end(*expected)),
               at(other_end(*got)));
    }
  }

  void check_weights() {
    std::vector<char> gathered(static_cast<size_t>(stages_)), whole = gathered;  // gathered: has any UNSHARD or RESHARD
    for (const auto& row : schedule_.rows)
      for (const Action& action : row)
        if (action.kind == UNSHARD || action.kind == RESHARD) gathered[static_cast<size_t>(action.stage)] = 1;
    for (size_t rank = 0; rank < schedule_.rows.size(); ++rank)
      for (size_t index = 0; index < schedule_.rows[rank].size(); ++index) {
        const Action& action = schedule_.rows[rank][index];
        const Place place{static_cast<int>(rank), static_cast<int>(index)};
        const auto stage = static_cast<size_t>(action.stage);
        char& is_whole = whole[stage];
        if (action.kind == UNSHARD) {
          if (is_whole) report("{}: the weights are gathered already", named(action, place));
          is_whole = 1;
        } else if (action.kind == RESHARD) {
          if (!is_whole) report("{}: the weights are not gathered", named(action, place));
          is_whole = 0;
        } else if (facts(action.kind).lane == Lane::compute && gathered[stage] && !is_whole) {
          report("{}: the weights are not gathered there", named(action, place));
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
    Action last{F, stage, 0};  // of the stage's computations, where each microbatch has a backward
    for (int m = 0; m < microbatches_; ++m)
      for (const Action& each : {Action{B, stage, m}, Action{W, stage, m}, Action{T, stage, m}, Action{TW, stage, m},
                                 Action{EB, stage, m}})
        if (has(each) && (last.kind == F || place_of(each).index > place_of(last).index)) last = each;
    for (const Action& reduction : all)
      if (last.kind != F) demand_order(last, reduction);
  }

  void check_progress() {
    for (const Stop& stop : stops(schedule_)) {
      const Action& action = schedule_.rows[static_cast<size_t>(stop.rank)][static_cast<size_t>(stop.index)];
      report("deadlock: {} waits for {}", at(action), at(stop.needed));
    }
  }

  const Schedule& schedule_;
  const int microbatches_;
  const std::vector<int>& buckets_;
  const int stages_;
  bool messages_ = false, reductions_ = false;
  const PlaceName name_;
  std::vector<int> indices_;                           // in the rows, by stage, microbatch and kind; -1: nowhere
  std::map<std::pair<int, int>, int> bucket_indices_;  // by stage and bucket
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> problems(const Schedule& schedule, int microbatches, const std::vector<int>& buckets,
                                  const PlaceName& place) {
  return Checker(schedule, microbatches, buckets, place).run();
}

void validate(const Schedule& schedule, int microbatches, const std::vector<int>& buckets) {
  const std::vector<std::string> found = problems(schedule, microbatches, buckets);
  if (!found.empty()) throw LogicError("the schedule is not valid:\n  " + join(found, "\n  "));
}

}  // namespace orthant

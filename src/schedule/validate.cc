// General checks of a schedule: computations, gathered weights, gradient reductions, deadlocks.
#include "schedule/validate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/errors.h"
#include "base/text.h"
#include "schedule/checker.h"
#include "schedule/progress.h"

namespace orthant {
namespace {

std::string by_rank(int rank, int index) {
  return index < 0 ? fmt::format("rank {}", rank) : fmt::format("rank {}, Action {}", rank, index);
}

}  // namespace

using enum ActionKind;

Checker::Checker(const Schedule& schedule, int microbatches, const std::vector<int>& buckets,
                 const PositionName& position)
    : schedule_(schedule),
      microbatches_(microbatches),
      buckets_(buckets),
      stages_(stage_count(schedule)),
      name_(position ? position : by_rank) {}

std::vector<std::string> Checker::run() {
  try {
    check();
  } catch (const Enough&) {
  }
  return found_;
}

void Checker::check() {
  if (!collect()) return;
  for (int stage = 0; stage < stages_; ++stage)
    for (int m = 0; m < microbatches_; ++m) check_microbatch(stage, m);
  check_vocabulary();
  check_messages();
  check_weights();
  check_reductions();
  check_steps();
  if (found_.empty()) check_progress();
}

std::string Checker::named(const Action& action, Position position) const {
  return fmt::format("{} ({})", to_string(action), name_(position.rank, position.index));
}

bool Checker::collect() {
  if (stages_ == 0 || static_cast<int>(schedule_.stage_owner.size()) != stages_) {
    report("the schedule has Actions on {} stages but owners of {}", stages_, schedule_.stage_owner.size());
    return false;
  }
  if (microbatches_ < 1) {
    report("the number of microbatches must be at least 1, not {}", microbatches_);
    return false;
  }
  indices_.assign(static_cast<size_t>(stages_) * static_cast<size_t>(microbatches_) * kMicrobatchKinds, -1);
  const int ranks = static_cast<int>(schedule_.rows.size());
  for (int stage = 0; stage < stages_; ++stage)
    if (owner(stage) < 0 || owner(stage) >= ranks) {
      const auto [rank, index] = first_position(schedule_, [&](const Action& action) { return action.stage > stage; });
      const std::string later = index < 0 ? ""
                                          : fmt::format(", but {} is on a later stage",
                                                        named(row(rank)[static_cast<size_t>(index)], {rank, index}));
      report("stage {} belongs to no rank{}", stage, later);
      return false;
    }
  for (int rank = 0; rank < ranks; ++rank)
    for (size_t i = 0; i < row(rank).size(); ++i) collect(row(rank)[i], {rank, static_cast<int>(i)});
  return found_.empty();
}

void Checker::collect(const Action& action, Position position) {
  const KindFacts& kind = facts(action.kind);
  if (action.stage < 0) return report("{} has no stage", named(action, position));
  if (owner(action.stage) != position.rank)
    return report("{}: stage {} is on {}", named(action, position), action.stage, name_(owner(action.stage), -1));
  messages_ |= is_message(action);
  reductions_ |= action.kind == REDUCE;
  steps_ |= is_step_action(action);
  if (action.microbatch < (kind.counts == NumberMeaning::microbatch ? 0 : -1) ||
      (kind.counts == NumberMeaning::nothing && action.microbatch >= 0))
    return report("{}: this kind cannot have this number", named(action, position));
  if (kind.counts == NumberMeaning::microbatch && action.microbatch >= microbatches_)
    return report("{}: microbatches run from 0 to {}", named(action, position), microbatches_ - 1);
  if (action.kind == UNSHARD || action.kind == RESHARD) return;
  if (action.kind == REDUCE) {  // a bucket may be reduced several times: the last one counts
    other_indices_[action] = position.index;
    return;
  }
  if (has(action)) return report("{} occurs twice, first as {}", named(action, position), at(action));
  (kind.counts == NumberMeaning::microbatch ? indices_[cell(action)] : other_indices_[action]) = position.index;
}

void Checker::demand_order(const Action& first, const Action& second) {
  if (position_of(first).rank == position_of(second).rank && position_of(first).index > position_of(second).index)
    report("{} comes before {}", at(second), at(first));
}

std::string Checker::where_missing(const char* side, const Action& other) const {
  return has(other) ? fmt::format("{} {}", side, at(other)) : fmt::format("({})", name_(owner(other.stage), -1));
}

Action Checker::backward_of(int stage, int m) const {
  const Action b{B, stage, m};
  return has(b) ? b : Action{I, stage, m};
}

void Checker::check_microbatch(int stage, int m) {
  const Action f{F, stage, m}, b{B, stage, m}, i{I, stage, m}, w{W, stage, m};
  if (!has(f)) report("{} is missing {}", to_string(f), where_missing("before", has(b) ? b : i));
  if (has(b) && (has(i) || has(w))) report("{} and {} exclude each other", at(b), at(has(i) ? i : w));
  if (!has(b) && !has(i) && !has(w)) report("{} is missing {}", to_string(b), where_missing("after", f));
  if (!has(b) && has(i) != has(w))
    report("{} is missing, but {} requires it", to_string(has(i) ? w : i), at(has(i) ? i : w));
  for (const Action& backward : {b, i, w})
    if (has(f) && has(backward)) demand_order(f, backward);
  if (has(i) && has(w)) demand_order(i, w);
}

void Checker::check_weights() {
  // gathered: whether the stage has any UNSHARD or RESHARD. unsharded: whether its weights are unsharded at this point.
  std::vector<char> gathered(static_cast<size_t>(stages_)), unsharded = gathered;
  for (const auto& row : schedule_.rows)
    for (const Action& action : row)
      if (action.kind == UNSHARD || action.kind == RESHARD) gathered[static_cast<size_t>(action.stage)] = 1;
  for (size_t rank = 0; rank < schedule_.rows.size(); ++rank)
    for (size_t index = 0; index < schedule_.rows[rank].size(); ++index) {
      const Action& action = schedule_.rows[rank][index];
      const Position position{static_cast<int>(rank), static_cast<int>(index)};
      const auto stage = static_cast<size_t>(action.stage);
      char& is_unsharded = unsharded[stage];
      if (action.kind == UNSHARD) {
        if (is_unsharded) report("{}: the weights have already been gathered", named(action, position));
        is_unsharded = 1;
      } else if (action.kind == RESHARD) {
        if (!is_unsharded) report("{}: the weights are not gathered", named(action, position));
        is_unsharded = 0;
      } else if (reads_weights(action) && gathered[stage] && !is_unsharded) {
        report("{}: the weights are not gathered here", named(action, position));
      }
    }
}

void Checker::check_reductions() {
  if (!reductions_ && buckets_.empty()) return;
  if (!buckets_.empty() && static_cast<int>(buckets_.size()) != stages_) {
    report("the number of buckets must be given for every stage, but it is given for {} of {}", buckets_.size(),
           stages_);
    return;
  }
  for (int stage = 0; stage < stages_; ++stage) check_reductions(stage);
}

void Checker::check_reductions(int stage) {
  std::vector<Action> all;       // without repetitions
  std::map<int, int> fruitless;  // by bucket: reductions with no backward since the previous one or the row's begin
  std::map<int, int> times;      // reductions, by bucket
  std::set<int> reduced;         // buckets reduced since the last backward
  int backwards = 0;
  for (const Action& action : row(owner(stage))) {
    if (action.stage != stage) continue;
    const auto completes = {B, W, T, TW, EB};
    if (std::ranges::find(completes, action.kind) != completes.end()) reduced.clear(), ++backwards;
    if (action.kind != REDUCE) continue;
    const bool is_new = reduced.insert(action.microbatch).second && backwards > 0;
    if (!is_new) ++fruitless[action.microbatch];
    if (++times[action.microbatch] == 1) all.push_back(action);
  }
  for (const auto& [bucket, count] : fruitless) {
    const Action reduction{REDUCE, stage, bucket};
    if (times[bucket] > 1) report("{} is repeated without a backward of the stage in between", at(reduction));
  }
  const Action for_all{REDUCE, stage, -1};
  if (has(for_all) && all.size() > 1) report("{} and single buckets of the stage exclude each other", at(for_all));
  if (all.empty() && buckets_.empty()) report("{} is missing", to_string(for_all));
  int count = 0;  // number of buckets
  for (const Action& action : all) count = std::max(count, action.microbatch + 1);
  if (!buckets_.empty()) {
    count = buckets_[static_cast<size_t>(stage)];
    for (const Action& action : all)
      if (action.microbatch >= count) report("{}: the bucket must be below {}", at(action), count);
  }
  for (int bucket = 0; bucket < count && !has(for_all); ++bucket)
    if (!has({REDUCE, stage, bucket})) report("{} is missing", to_string(Action{REDUCE, stage, bucket}));
  // The last Action of these kinds on the stage; none if it has none.
  const auto last_of = [&](const std::vector<ActionKind>& kinds) {
    std::optional<Action> last;
    for (int m = 0; m < microbatches_; ++m) {
      for (const ActionKind kind : kinds) {
        const Action each{kind, stage, m};
        if (has(each) && (!last || position_of(each).index > position_of(*last).index)) last = each;
      }
    }
    return last;
  };
  if (const auto last = last_of({B, W})) {
    for (const Action& reduction : all) demand_order(*last, reduction);
  }
  // The vocabulary's gradients are in buckets of their own, which may be reduced later than those of the blocks.
  const auto latest = std::ranges::max_element(all, {}, [&](const Action& each) { return position_of(each).index; });
  if (const auto last = last_of({T, TW, EB}); last && latest != all.end()) demand_order(*last, *latest);
}

void Checker::check_progress() {
  for (const Stop& stop : stops(schedule_)) {
    const Action& action = row(stop.rank)[static_cast<size_t>(stop.index)];
    report("deadlock: {} waits for {}", at(action), at(stop.needed));
  }
}

std::vector<std::string> problems(const Schedule& schedule, int microbatches, const std::vector<int>& buckets,
                                  const PositionName& position) {
  return Checker(schedule, microbatches, buckets, position).run();
}

void validate(const Schedule& schedule, int microbatches, const std::vector<int>& buckets) {
  const std::vector<std::string> found = problems(schedule, microbatches, buckets);
  if (!found.empty()) throw LogicError("the schedule is not valid:\n  " + join(found, "\n  "));
}

}  // namespace orthant

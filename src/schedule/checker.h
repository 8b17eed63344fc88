// What validate() looks with: where each Action of a Schedule stands, and what was found wrong. Its checks are in
// validate.cc, those of messages in validate_messages.cc, those of the vocabulary layers in validate_vocabulary.cc, and
// those of post-validated steps in validate_steps.cc.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/validate.h"

namespace orthant {

class Checker {
 public:
  Checker(const Schedule& schedule, int microbatches, const std::vector<int>& buckets, const PlaceName& place);
  std::vector<std::string> run();

 private:
  /// The kinds that count microbatches come first.
  static constexpr size_t kMicrobatchKinds = static_cast<size_t>(ActionKind::RECV_B) + 1;
  struct Place {
    int rank = -1;
    int index = -1;
  };

  /// Thrown when there is enough to report: a damaged number must not become as many problems.
  struct Enough {};
  static constexpr size_t kMostProblems = 100;

  template <typename... Values>
  void report(fmt::format_string<Values...> format, Values&&... values) {
    found_.push_back(fmt::format(format, std::forward<Values>(values)...));
    if (found_.size() == kMostProblems) throw Enough();
  }

  void check();
  std::string named(const Action& action, Place place) const;
  std::string at(const Action& action) const { return named(action, place_of(action)); }
  /// What has a microbatch is in a table, the rest in a map; each stands on the owner of its stage.
  Place place_of(const Action& action) const {
    if (facts(action.kind).counts == ThirdField::microbatch) return {owner(action.stage), indices_[cell(action)]};
    const auto found = other_indices_.find(action);
    return {owner(action.stage), found == other_indices_.end() ? -1 : found->second};
  }
  bool has(const Action& action) const { return place_of(action).index >= 0; }
  size_t cell(const Action& action) const {
    const size_t pass = static_cast<size_t>(action.stage) * static_cast<size_t>(microbatches_) +
                        static_cast<size_t>(action.microbatch);
    return pass * kMicrobatchKinds + static_cast<size_t>(action.kind);
  }
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }
  const std::vector<Action>& row(int rank) const { return schedule_.rows[static_cast<size_t>(rank)]; }

  /// Notes where each Action stands; false where the schedule cannot be looked at any further.
  bool collect();
  void collect(const Action& action, Place place);
  void demand_order(const Action& first, const Action& second);
  /// Where something that is missing should be: before or after another Action, if that is there.
  std::string beside(const char* side, const Action& other) const;
  /// What computes the gradient of the stage's input.
  Action backward_of(int stage, int m) const;

  /// F, and B or I and W, of one microbatch on one stage.
  void check_microbatch(int stage, int m);
  void check_weights();
  void check_reductions();
  void check_reductions(int stage);
  void check_progress();

  void check_messages();
  void check_message(const Action& made, const Action& sent, const Action& received, const Action& used);
  /// Between two ranks messages travel in one order: the k-th sent has to be the k-th received.
  void check_message_order();

  void check_steps();
  /// What comes before SETTLE may have to be done again: it leaves gradients, and the other ranks, as they were.
  void check_settled(const std::vector<int>& first_stage);

  void check_vocabulary();
  /// The kinds of one vocabulary layer on one rank: each microbatch once, in their order.
  void check_vocabulary(int rank, int stage, const std::vector<ActionKind>& kinds);
  /// All ranks issue a collective's microbatches in increasing order: where they stand in a row, that is theirs.
  void check_increasing(int rank, ActionKind kind, int stage);

  const Schedule& schedule_;
  const int microbatches_;
  const std::vector<int>& buckets_;
  const int stages_;
  bool messages_ = false, reductions_ = false, steps_ = false;
  const PlaceName name_;
  std::vector<int> indices_;             // in the rows, by stage, microbatch and kind; -1: nowhere
  std::map<Action, int> other_indices_;  // of REDUCE, SETTLE and STEP
  std::vector<std::string> found_;
};

}  // namespace orthant

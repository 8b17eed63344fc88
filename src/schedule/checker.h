// Checker: the implementation of validate(). It indexes where each Action of a schedule occurs, and collects problems.
// General checks are in validate.cc, checks of messages in validate_messages.cc, checks of vocabulary layers in
// validate_vocabulary.cc, and checks of post-validated steps in validate_steps.cc.
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
  Checker(const Schedule& schedule, int microbatches, const std::vector<int>& buckets, const PositionName& position);
  std::vector<std::string> run();

 private:
  /// Number of kinds that count microbatches. They come first in the enum.
  static constexpr size_t kMicrobatchKinds = static_cast<size_t>(ActionKind::RECV_B) + 1;
  struct Position {
    int rank = -1;
    int index = -1;
  };

  /// Thrown after kMostProblems problems, so that one damaged number in a file cannot cause millions of reports.
  struct Enough {};
  static constexpr size_t kMostProblems = 100;

  template <typename... Values>
  void report(fmt::format_string<Values...> format, Values&&... values) {
    found_.push_back(fmt::format(format, std::forward<Values>(values)...));
    if (found_.size() == kMostProblems) throw Enough();
  }

  void check();
  std::string named(const Action& action, Position position) const;
  std::string at(const Action& action) const { return named(action, position_of(action)); }
  /// Rank and index of the Action; index -1 if the schedule does not have it. Kinds with a microbatch are in a table,
  /// all others in a map. The rank is always the owner of the stage.
  Position position_of(const Action& action) const {
    if (facts(action.kind).counts == NumberMeaning::microbatch) return {owner(action.stage), indices_[cell(action)]};
    const auto found = other_indices_.find(action);
    return {owner(action.stage), found == other_indices_.end() ? -1 : found->second};
  }
  bool has(const Action& action) const { return position_of(action).index >= 0; }
  size_t cell(const Action& action) const {
    const size_t pass = static_cast<size_t>(action.stage) * static_cast<size_t>(microbatches_) +
                        static_cast<size_t>(action.microbatch);
    return pass * kMicrobatchKinds + static_cast<size_t>(action.kind);
  }
  int owner(int stage) const { return schedule_.stage_owner[static_cast<size_t>(stage)]; }
  const std::vector<Action>& row(int rank) const { return schedule_.rows[static_cast<size_t>(rank)]; }

  /// Records where each Action occurs. Returns false if the schedule is too damaged for further checks.
  bool collect();
  void collect(const Action& action, Position position);
  void demand_order(const Action& first, const Action& second);
  /// Text that says where a missing Action belongs: `side` ("before" or "after") and the other Action, if that exists.
  std::string where_missing(const char* side, const Action& other) const;
  /// The Action that computes the gradient of the stage's input: B, or I if there is no B.
  Action backward_of(int stage, int m) const;

  /// Checks that one microbatch has on one stage F, and either B or both I and W, in this order.
  void check_microbatch(int stage, int m);
  void check_weights();
  void check_reductions();
  void check_reductions(int stage);
  void check_progress();

  void check_messages();
  void check_message(const Action& made, const Action& sent, const Action& received, const Action& used);
  /// Checks that messages between two ranks keep their order: the k-th message sent must be the k-th received.
  void check_message_order();

  void check_steps();
  /// Checks the Actions before FINALIZE, which may have to be repeated. They must not write gradients, and both ends of
  /// a message must be on the same side of FINALIZE.
  void check_before_finalize(const std::vector<int>& first_stage);

  void check_vocabulary();
  /// Checks the kinds of one vocabulary layer on one rank: each once per microbatch, in the given order.
  void check_vocabulary(int rank, int stage, const std::vector<ActionKind>& kinds);
  /// Checks that the microbatches of a kind increase along the row, since all ranks must issue the microbatches of a
  /// collective in the same order.
  void check_increasing(int rank, ActionKind kind, int stage);

  const Schedule& schedule_;
  const int microbatches_;
  const std::vector<int>& buckets_;
  const int stages_;
  bool messages_ = false, reductions_ = false, steps_ = false;
  const PositionName name_;
  std::vector<int> indices_;             // index in the row, by stage, microbatch and kind; -1 if missing
  std::map<Action, int> other_indices_;  // index in the row of REDUCE, FINALIZE and STEP
  std::vector<std::string> found_;
};

}  // namespace orthant

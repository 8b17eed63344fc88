// Checks of messages: each result that crosses ranks is sent and received once, in the same order on both sides.
#include <algorithm>

#include "schedule/checker.h"

namespace orthant {

using enum ActionKind;

void Checker::check_messages() {
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
      const int other = matching_message(action).stage;
      if (other < 0 || other >= stages_ || owner(other) == owner(action.stage))
        report("{}: no result crosses ranks here", at(action));
    }
  if (found_.empty()) check_message_order();
}

void Checker::check_message(const Action& made, const Action& sent, const Action& received, const Action& used) {
  const auto other = [&](const Action& action) { return has(action) ? ", for " + at(action) : ""; };
  if (!has(sent)) report("{} is missing {}{}", to_string(sent), where_missing("after", made), other(received));
  if (!has(received)) report("{} is missing {}{}", to_string(received), where_missing("before", used), other(sent));
  if (has(made) && has(sent)) demand_order(made, sent);
  if (has(received) && has(used)) demand_order(received, used);
}

void Checker::check_message_order() {
  // The RECVs between two ranks, in the order of the sender's SENDs and in the order of the receiver's row. The key is
  // the sending and the receiving rank.
  std::map<std::pair<int, int>, std::vector<Action>> sent, received;
  for (const auto& row : schedule_.rows)
    for (const Action& action : row) {
      if (!is_message(action)) continue;
      const Action other = matching_message(action);
      if (facts(action.kind).stream == Stream::send)
        sent[{owner(action.stage), owner(other.stage)}].push_back(other);
      else
        received[{owner(other.stage), owner(action.stage)}].push_back(action);
    }
  for (const auto& [ranks, order] : sent) {
    const std::vector<Action>& other = received[ranks];
    const auto [expected, got] = std::mismatch(order.begin(), order.end(), other.begin(), other.end());
    if (expected != order.end() && got != other.end())
      report("{} must come after {}, because {} is sent before {}", at(*got), at(*expected),
             at(matching_message(*expected)), at(matching_message(*got)));
  }
}

}  // namespace orthant

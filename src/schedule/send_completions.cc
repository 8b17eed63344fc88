// Derives send completions from received messages. A message from another rank proves how far that rank has come in its
// row, and so which receives it has posted.
#include "schedule/send_completions.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

#include "schedule/posted_receives.h"

namespace orthant {

MessageIndices find_message_indices(const Schedule& schedule) {
  MessageIndices positions{.sent = {stage_count(schedule), microbatch_count(schedule), -1},
                           .posted = {stage_count(schedule), microbatch_count(schedule), -1}};
  for (const auto& row : schedule.rows) {
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      const Action& action = row[static_cast<size_t>(i)];
      if (facts(action.kind).stream == Stream::send) positions.sent[action] = i;
    }
    for (const auto& [index, posted_at] : posted_receives(row))
      positions.posted[row[static_cast<size_t>(index)]] = posted_at;
  }
  return positions;
}

PerResult<int> send_completions(const Schedule& schedule) {
  const MessageIndices positions = find_message_indices(schedule);
  const auto owner = [&](int stage) { return static_cast<size_t>(schedule.stage_owner[static_cast<size_t>(stage)]); };
  PerResult<int> gone(stage_count(schedule), microbatch_count(schedule), std::numeric_limits<int>::max());
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const auto& row = schedule.rows[rank];
    std::vector<int> reached(schedule.rows.size(), -1);  // index that each rank has certainly reached in its row
    std::vector<std::deque<Action>> leaving(schedule.rows.size());  // incomplete sends by receiver, in order
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      const Action& action = row[static_cast<size_t>(i)];
      if (produces_result(action)) {
        const Action source = producer_of(action);
        if (!positions.sent.has(source) || owner(source.stage) == rank) continue;
        int& known = reached[owner(source.stage)];
        known = std::max(known, positions.sent[send_of(source)]);
      }
      if (facts(action.kind).stream != Stream::send) continue;
      for (size_t to = 0; to < leaving.size(); ++to) {
        auto& queue = leaving[to];
        for (; !queue.empty() && positions.posted[matching_message(queue.front())] < reached[to]; queue.pop_front())
          gone[queue.front()] = i;
      }
      leaving[owner(matching_message(action).stage)].push_back(action);
    }
  }
  return gone;
}

}  // namespace orthant

// Derives send completions from received messages. A message from another rank proves how far that rank has come in its
// row, and so which receives it has posted.
#include "schedule/departures.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

namespace orthant {

MessagePlaces message_places(const Schedule& schedule) {
  MessagePlaces places{.sent = {stage_count(schedule), microbatch_count(schedule), -1},
                       .posted = {stage_count(schedule), microbatch_count(schedule), -1}};
  for (const auto& row : schedule.rows) {
    int pass = -1;  // index of the last computation so far
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      const Action& action = row[static_cast<size_t>(i)];
      const Lane lane = facts(action.kind).lane;
      if (lane == Lane::compute) pass = i;
      if (lane == Lane::send) places.sent[action] = i;
      if (lane == Lane::receive) places.posted[action] = pass >= 0 ? pass : i;
    }
  }
  return places;
}

PerResult<int> departures(const Schedule& schedule) {
  const MessagePlaces places = message_places(schedule);
  const auto owner = [&](int stage) { return static_cast<size_t>(schedule.stage_owner[static_cast<size_t>(stage)]); };
  PerResult<int> gone(stage_count(schedule), microbatch_count(schedule), std::numeric_limits<int>::max());
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    const auto& row = schedule.rows[rank];
    std::vector<int> reached(schedule.rows.size(), -1);  // index that each rank has certainly reached in its row
    std::vector<std::deque<Action>> leaving(schedule.rows.size());  // incomplete sends by receiver, in order
    for (int i = 0; i < static_cast<int>(row.size()); ++i) {
      const Action& action = row[static_cast<size_t>(i)];
      if (makes_result(action)) {
        const Action source = source_of(action);
        if (!places.sent.has(source) || owner(source.stage) == rank) continue;
        int& known = reached[owner(source.stage)];
        known = std::max(known, places.sent[send_of(source)]);
      }
      if (facts(action.kind).lane != Lane::send) continue;
      for (size_t to = 0; to < leaving.size(); ++to) {
        auto& queue = leaving[to];
        for (; !queue.empty() && places.posted[other_end(queue.front())] < reached[to]; queue.pop_front())
          gone[queue.front()] = i;
      }
      leaving[owner(other_end(action).stage)].push_back(action);
    }
  }
  return gone;
}

}  // namespace orthant

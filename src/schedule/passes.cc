// Carries out the rows together and inserts messages in the order in which results are made:
//
//   repeat until no rank can go on:
//     for each rank whose next Action is ready: append the Action to its row
//       if another rank reads the result: append SEND to this row, and RECV to the reader's row
//
// A repetition visits only the ranks that may have become ready, so that the time grows with the number of Actions.
//
// The order of these steps is the global order in which both ends of each message are adjacent.
#include "schedule/passes.h"

#include <set>
#include <utility>

#include "base/errors.h"
#include "schedule/barriers.h"
#include "schedule/results.h"

namespace orthant {

Schedule add_messages(const Schedule& in) {
  Schedule out{.rows = std::vector<std::vector<Action>>(in.rows.size()), .stage_owner = in.stage_owner};
  const int stages = stage_count(in), microbatches = microbatch_count(in);
  ORTHANT_CHECK(static_cast<int>(in.stage_owner.size()) == stages, in.stage_owner.size(), stages);
  const auto owner = [&](int stage) { return static_cast<size_t>(in.stage_owner[static_cast<size_t>(stage)]); };
  PerResult<char> there(stages, microbatches, 0);  // whether the result that the pass reads has been made
  Barriers barriers(in);
  std::vector<size_t> next(in.rows.size(), 0);
  // Each rank does at most one Action per round, in the order of ranks, which approximates the order in time of passes
  // of equal length. The sets hold the ranks that may be ready.
  std::set<size_t> round, next_round;
  for (size_t rank = 0; rank < in.rows.size(); ++rank) round.insert(rank);
  for (; !round.empty(); round = std::exchange(next_round, {})) {
    while (!round.empty()) {
      const size_t rank = *round.begin();
      round.erase(round.begin());
      const auto wake = [&](size_t other) { (other > rank ? round : next_round).insert(other); };
      const auto wake_all = [&] {
        for (size_t other = 0; other < in.rows.size(); ++other) wake(other);
      };
      if (next[rank] == in.rows[rank].size()) continue;
      const Action action = in.rows[rank][next[rank]];
      ORTHANT_CHECK(!is_message(action), to_string(action), "the schedule already has messages");
      const bool waits = produces_result(action) && there.has(producer_of(action)) && !there[action];
      if (barriers.reach(action)) wake_all();
      if (waits || !barriers.met(action)) continue;
      ++next[rank];
      next_round.insert(rank);
      if (barriers.done(action)) wake_all();
      out.rows[rank].push_back(action);
      const Action reader = consumer_of(action);
      if (!produces_result(action) || !there.has(reader)) continue;
      there[reader] = 1;
      if (owner(reader.stage) == rank) continue;
      wake(owner(reader.stage));
      out.rows[rank].push_back(send_of(action));
      out.rows[owner(reader.stage)].push_back(recv_of(reader));
    }
  }
  for (size_t rank = 0; rank < next.size(); ++rank)
    if (next[rank] < in.rows[rank].size())
      throw LogicError(
          fmt::format("a schedule that deadlocks cannot get messages: rank {} is blocked at its Action {}, {}", rank,
                      next[rank], to_string(in.rows[rank][next[rank]])));
  return out;
}

Schedule split_stages(const Schedule& schedule, const std::vector<int>& parts) {
  ORTHANT_CHECK(parts.size() == schedule.stage_owner.size(), parts.size(), schedule.stage_owner.size());
  Schedule split{.rows = std::vector<std::vector<Action>>(schedule.rows.size()), .stage_owner = {}};
  std::vector<int> first_part;
  for (size_t stage = 0; stage < parts.size(); ++stage) {
    first_part.push_back(static_cast<int>(split.stage_owner.size()));
    split.stage_owner.insert(split.stage_owner.end(), static_cast<size_t>(parts[stage]), schedule.stage_owner[stage]);
  }
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (const auto& [kind, stage, number] : schedule.rows[rank]) {
      using enum ActionKind;
      ORTHANT_CHECK(facts(kind).stream != Stream::collective, to_string({kind, stage, number}));
      const int first = first_part[static_cast<size_t>(stage)], end = first + parts[static_cast<size_t>(stage)];
      auto& row = split.rows[rank];
      const auto add = [&row, kind = kind, number = number](int part) { row.push_back({kind, part, number}); };
      if (kind == F) {
        for (int part = first; part < end; ++part) add(part);
      } else if (is_computation({kind, stage, number})) {
        for (int part = end; part-- > first;) add(part);
      } else {
        add(kind == SEND_F || kind == RECV_B ? end - 1 : first);
      }
    }
  }
  return split;
}

}  // namespace orthant

// send_completions(): one case worked by hand, and all schedules against a simulation that holds the receiver back.
// Negative control: one SEND earlier, a completion is usually not certain.
#include "schedule/send_completions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "parallel/pipeline/plan.h"
#include "schedule/passes.h"

namespace orthant::send_completions_test {
namespace {

using enum ActionKind;

/// The index that a rank reaches in its row if rank `held` stops before index `place` of its own row. Sends do not
/// wait; a pass waits for the results that it reads.
size_t comes_to(const Schedule& schedule, size_t rank, size_t held, size_t place) {
  PerResult<char> sent(stage_count(schedule), microbatch_count(schedule), 0);
  std::vector<size_t> next(schedule.rows.size(), 0);
  const auto owner = [&](int stage) { return schedule.stage_owner[static_cast<size_t>(stage)]; };
  const auto waits = [&](const Action& action) {
    if (!produces_result(action)) return false;
    const Action source = producer_of(action);
    return sent.has(source) && owner(source.stage) != owner(action.stage) && !sent[send_of(source)];
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < next.size(); ++r) {
      const auto& row = schedule.rows[r];
      while (next[r] < row.size() && !(r == held && next[r] == place) && !waits(row[next[r]])) {
        if (facts(row[next[r]].kind).stream == Stream::send) sent[row[next[r]]] = 1;
        ++next[r], moved = true;
      }
    }
  }
  return next[rank];
}

Schedule made(std::string_view name, int ranks, int microbatches) {
  const PipelineSchedule& known = pipeline_schedule(name);
  return add_messages(
      known.make({.ranks = ranks, .stages_per_rank = known.stages_per_rank, .microbatches = microbatches}));
}

TEST(Departures, OfTwoStages) {
  const Schedule schedule = made("1f1b", 2, 3);
  const auto& row = schedule.rows[0];
  const auto place = [&](const Action& action) {
    return static_cast<int>(std::find(row.begin(), row.end(), action) - row.begin());
  };
  const PerResult<int> gone = send_completions(schedule);
  // The gradient of microbatch 0 shows that stage 1 has begun this microbatch, so it has received its input.
  const Action first{SEND_F, 0, 0}, last{SEND_F, 0, 2};
  EXPECT_EQ(gone[first], place(last));
  EXPECT_EQ(gone[last], std::numeric_limits<int>::max());
}

TEST(Departures, AreCertainAndNotEarlier) {
  int64_t known = 0, sooner = 0;
  for (const PipelineSchedule& each : pipeline_schedules()) {
    const std::string_view name = each.name;
    for (const int ranks : {2, 3, 4}) {
      const Schedule schedule = made(name, ranks, 2 * ranks);
      const PerResult<int> gone = send_completions(schedule);
      const MessageIndices positions = find_message_indices(schedule);
      for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
        for (size_t i = 0; i < schedule.rows[rank].size(); ++i) {
          const Action& send = schedule.rows[rank][i];
          if (facts(send.kind).stream != Stream::send) continue;
          const Action received = matching_message(send);
          const auto to = static_cast<size_t>(schedule.stage_owner[static_cast<size_t>(received.stage)]);
          const size_t reached = comes_to(schedule, rank, to, static_cast<size_t>(positions.posted[received]));
          const auto send_completion = static_cast<size_t>(gone[send]);
          if (send_completion >= schedule.rows[rank].size()) continue;
          EXPECT_LT(reached, send_completion) << name << " on " << ranks << ": " << to_string(send);
          ++known;
          size_t before = send_completion - 1;
          while (facts(schedule.rows[rank][before].kind).stream != Stream::send) --before;
          sooner += reached > before;  // negative control: one SEND earlier, the completion is not certain
        }
      }
    }
  }
  EXPECT_GT(known, 100);
  EXPECT_GT(sooner, known / 2);
}

}  // namespace
}  // namespace orthant::send_completions_test

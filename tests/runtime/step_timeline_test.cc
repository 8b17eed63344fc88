// The measured intervals of all ranks, converted to one clock. The control takes the clocks as they are.
#include "runtime/step_timeline.h"

#include "comm/thread_ranks.h"

#include <gtest/gtest.h>

#include <chrono>

namespace orthant::step_timeline_test {
namespace {

using namespace std::chrono_literals;

TEST(StepTimeline, BringsClocksTogether) {
  // All ranks start at once, but each reads its own clock. Rank r works for r + 1 milliseconds.
  const std::vector<Clock::duration> ahead = {0s, 700s, -300s};
  const Schedule schedule{.rows = {{{ActionKind::F, 0, 0}}, {{ActionKind::F, 1, 0}}, {{ActionKind::F, 2, 0}}},
                          .stage_owner = {0, 1, 2}};
  for (const bool compared : {true, false}) {
    MeasuredStep first;
    run_ranks(3, [&](const Rendezvous& rendezvous, int rank) {
      Comm comm(Mesh({{"pipeline", 3}}), rank, rendezvous);
      const auto own = [&] { return Clock::now() + ahead[static_cast<size_t>(rank)]; };
      comm.barrier({"pipeline"}).wait();
      const auto start = own();
      const std::vector<Interval> intervals = {{start, start + 1ms * (rank + 1)}};
      const MeasuredStep measured =
          compared ? gather_timeline(comm, schedule, 5, intervals, own) : gather_timeline(comm, schedule, 5, intervals);
      if (rank == 0) first = measured;
    });
    EXPECT_EQ(first.step, 5);
    ASSERT_EQ(first.timeline.spans.size(), 3u);
    EXPECT_GE(first.clock_error_s, 0);
    EXPECT_LT(first.clock_error_s, 10);
    double latest_s = 0;
    for (size_t rank = 0; rank < 3; ++rank) {
      const Span& span = first.timeline.spans[rank];
      EXPECT_EQ(span.action, schedule.rows[rank][0]);
      EXPECT_NEAR(span.end - span.start, 1e-3 * static_cast<double>(rank + 1), 1e-6);
      latest_s = std::max(latest_s, span.start);
    }
    // With the offsets applied, starts differ by the time that ranks take to leave a barrier; otherwise by 1,000
    // seconds.
    if (compared) {
      EXPECT_LT(latest_s, 30);
    } else {
      EXPECT_GT(latest_s, 900);
    }
    EXPECT_NEAR(first.simulated_s, 6e-3, 1e-5);  // the stages run one after the other
  }
}

}  // namespace
}  // namespace orthant::step_timeline_test

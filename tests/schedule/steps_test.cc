// Consecutive steps: the time from step to step against closed forms, and against more steps. Control: rows without
// STEP.
#include "schedule/steps.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "parallel/pipeline/post_validation_plan.h"
#include "schedule/passes.h"
#include "tests/parallel/pipeline/every_schedule.h"

namespace orthant::steps_test {
namespace {

Schedule with_steps(const Schedule& plain) { return with_post_validation(add_messages(plain)); }

double busiest(const Timeline& timeline) { return *std::ranges::max_element(timeline.busy); }

// The end of each of `steps` consecutive steps, on any rank.
std::vector<double> ends_of(const Schedule& schedule, const Durations& durations, int steps) {
  const int microbatches = microbatch_count(schedule);
  std::vector<double> ends(static_cast<size_t>(steps), 0);
  for (const Span& span : simulate(repeat_steps(schedule, steps), durations).spans) {
    if (microbatch_of(span.action) < 0) continue;
    double& end = ends[static_cast<size_t>(microbatch_of(span.action) / microbatches)];
    end = std::max(end, span.end);
  }
  return ends;
}

TEST(Steps, AreRepeatedWithHigherMicrobatches) {
  const Schedule schedule = parse_csv("0F0,0F1,0B0,0B1,0REDUCE_GRAD0\n");
  EXPECT_EQ(to_csv(repeat_steps(schedule, 2)), "0F0,0F1,0B0,0B1,0REDUCE_GRAD0,0F2,0F3,0B2,0B3,0REDUCE_GRAD0\n");
  EXPECT_EQ(repeat_steps(schedule, 1), schedule);
}

// For p ranks and passes of equal length, ranks idle for the bubble between their own first and last Action: not at all
// in ZB-H2 and ZB-V, p - 1 in ZB-H1, and 3 (p - 1) in 1F1B. Only steps that do not overlap take the makespan.
TEST(Steps, IdleForTheOwnBubble) {
  const Durations equal = Durations::of(1, 1, 1);
  for (const int p : {2, 4, 8}) {
    const int m = 3 * p;
    const auto idle = [&](const Schedule& plain) { return step_interval(with_steps(plain), equal) - 3.0 * m; };
    EXPECT_EQ(idle(zb_h2(p, m)), 0) << p;
    EXPECT_EQ(idle(zb_h1(p, m)), p - 1) << p;
    EXPECT_EQ(idle(one_f_one_b(p, m)), 3 * (p - 1)) << p;
    EXPECT_EQ(step_interval(with_steps(zb_v(p, m)), equal), 6.0 * m) << p;
    // In one step alone, ZB-H2 is as long as ZB-H1.
    EXPECT_EQ(simulate(zb_h2(p, m), equal).makespan, simulate(zb_h1(p, m), equal).makespan) << p;
  }
}

TEST(Steps, AreEquallyLongFromTheSecondOn) {
  Durations durations = Durations::of(2, 3, 1).with(ActionKind::STEP, 1.5);
  durations.link_time = 0.125;
  for (const int p : {2, 3, 4, 6}) {
    for (const int m : {1, p, 3 * p}) {
      for (const auto& [name, plain] : every_schedule(p, m)) {
        const Schedule schedule = with_steps(plain);
        const double interval = step_interval(schedule, durations);
        const std::vector<double> ends = ends_of(schedule, durations, 6);
        EXPECT_NEAR((ends[5] - ends[2]) / 3, interval, 0.01 * interval) << name << ", " << p << " ranks, " << m;
        const Timeline one = simulate(schedule, durations);
        EXPECT_LE(interval, one.makespan + 1e-9) << name;
        EXPECT_GE(interval, busiest(one) - 1e-9) << name;
      }
    }
  }
}

// Half of the microbatches have half the sequences.
TEST(Steps, ScaleMicrobatches) {
  Durations durations = Durations::of(1, 1, 1);
  durations.microbatch_scale = {1, 0.5, 1, 0.5};
  EXPECT_EQ(step_interval(with_steps(one_f_one_b(1, 4)), durations), 3 * 3);
}

TEST(Steps, RequireStep) {
  EXPECT_THROW(step_interval(add_messages(one_f_one_b(2, 2)), Durations::of(1, 1, 1)), LogicError);
}

}  // namespace
}  // namespace orthant::steps_test

// Post-validation in schedules: the position of FINALIZE, its validity in every schedule, and that no rank waits for
// the gradient norm between steps. The control is the synchronous step.
#include "parallel/pipeline/post_validation_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "schedule/passes.h"
#include "schedule/steps.h"
#include "schedule/validate.h"
#include "tests/parallel/pipeline/every_schedule.h"
#include "tests/schedule/machine.h"

namespace orthant::post_validation_test {
namespace {

using enum ActionKind;

int forwards_before_finalize(const std::vector<Action>& row) {
  const auto finalize = std::ranges::find(row, FINALIZE, &Action::kind);
  return static_cast<int>(std::count_if(row.begin(), finalize, [](const Action& a) { return a.kind == F; }));
}

/// The synchronous step: FINALIZE is the first Action of each row, so that all ranks wait for the norm.
Schedule synchronous(Schedule schedule) {
  for (auto& row : schedule.rows) {
    const auto finalize = std::ranges::find(row, FINALIZE, &Action::kind);
    std::rotate(row.begin(), finalize, finalize + 1);
  }
  return schedule;
}

// validate() and the machine of the tests, which carries out the rows, accept every schedule with FINALIZE and STEP.
TEST(PostValidation, IsValidInEverySchedule) {
  for (const int p : {1, 2, 3, 4, 5, 8})
    for (const int m : {1, 2, 3, 5, 8, 16})
      for (const auto& [name, plain] : every_schedule(p, m)) {
        const std::vector<int> buckets(plain.stage_owner.size(), 1);
        const Schedule schedule = with_post_validation(add_reductions(add_messages(plain), buckets));
        ASSERT_EQ(problems(schedule, m, buckets), std::vector<std::string>{}) << name << to_csv(schedule);
        EXPECT_TRUE(Machine(schedule, m, buckets).works()) << name;
        EXPECT_EQ(parse_csv(to_csv(schedule)), schedule) << name;
      }
}

// On rank r of p, FINALIZE comes after p-1-r or p-r forwards: the full statistics can have arrived by then.
TEST(PostValidation, SettlesWhenStatisticsCanHaveArrived) {
  for (const int p : {2, 4, 8})
    for (const Schedule& plain : {zb_h2(p, 2 * p), zb_v(p, 2 * p), one_f_one_b(p, 2 * p)}) {
      const Schedule schedule = with_post_validation(add_messages(plain));
      for (int rank = 0; rank < p; ++rank) {
        const int forwards = forwards_before_finalize(schedule.rows[static_cast<size_t>(rank)]);
        EXPECT_GE(forwards, p - 1 - rank) << to_csv(schedule);
        EXPECT_LE(forwards, p - rank) << to_csv(schedule);
      }
    }
}

TEST(PostValidation, LeavesNoBubbleBetweenStepsOfZeroBubbleSchedules) {
  for (const int p : {2, 4, 8})
    for (const auto& [plain, unit] : {std::pair{zb_h2(p, 3 * p), 1.0}, {zb_v(p, 3 * p), 1.0}}) {
      const Schedule messages = add_messages(plain), schedule = with_post_validation(messages);
      Durations equal = Durations::of(unit, unit, unit);
      for (const double step_s : {0.0, 2.0}) {
        const Durations times = equal.with(STEP, step_s);
        EXPECT_EQ(max_rank_bubble(simulate(repeat_steps(schedule, 3), times)), 0) << p << " ranks";
        // The control: in synchronous steps, all ranks wait for the last one between each two of the three steps.
        EXPECT_EQ(max_rank_bubble(simulate(repeat_steps(synchronous(schedule), 3), times)), 2.0 * (p - 1) * unit);
      }
    }
}

/// The end of the last computation of three steps, in seconds.
double last_pass_s(const Schedule& schedule, const Durations& durations) {
  double end_s = 0;
  for (const Span& span : simulate(repeat_steps(schedule, 3), durations).spans)
    if (span.stream == Stream::compute && !is_step_action(span.action)) end_s = std::max(end_s, span.end);
  return end_s;
}

// Post-validation delays no schedule, except by the time of its own messages. Between two steps that is at most 3 (p-1)
// links: the statistics go to the last rank and back, and a message that follows them goes from the first rank to the
// last.
TEST(PostValidation, DelaysNoSchedule) {
  constexpr double kLink = 1.0 / 64;
  for (const int p : {2, 4, 8})
    for (const auto& [name, plain] : every_schedule(p, 3 * p)) {
      const Schedule messages = add_messages(plain), schedule = with_post_validation(messages);
      Durations times = Durations::of(1, 1, 1);
      EXPECT_EQ(last_pass_s(schedule, times), last_pass_s(messages, times)) << name << ", " << p << " ranks";
      times.link_time = kLink;
      const double longer_s = last_pass_s(schedule, times) - last_pass_s(messages, times);
      EXPECT_LE(longer_s, 2 * 3 * (p - 1) * kLink) << name << ", " << p << " ranks";
    }
}

// A schedule is invalid if a step could not be undone: if an Action before FINALIZE writes gradients, a send and its
// receive lie on different sides of FINALIZE, STEP is missing, or an Action follows STEP.
TEST(PostValidation, RefusesStepsThatCannotBeUndone) {
  const Schedule good = with_post_validation(add_messages(one_f_one_b(2, 2)));
  ASSERT_EQ(problems(good, 2), std::vector<std::string>{});
  const auto says = [](const Schedule& schedule, const std::vector<std::string>& words) {
    const std::vector<std::string> found = problems(schedule, 2);
    return std::ranges::any_of(found, [&](const std::string& problem) {
      return std::ranges::all_of(words, [&](const auto& word) { return problem.find(word) != std::string::npos; });
    });
  };
  const auto with_finalize_at = [&](size_t rank, size_t index) {
    Schedule bad = good;
    auto& row = bad.rows[rank];
    const auto finalize = std::ranges::find(row, FINALIZE, &Action::kind);
    const Action action = *finalize;
    row.erase(finalize);
    row.insert(row.begin() + static_cast<std::ptrdiff_t>(index), action);
    return bad;
  };
  EXPECT_TRUE(says(with_finalize_at(1, good.rows[1].size() - 2), {"1F0", "comes before 1FINALIZE"}));
  EXPECT_TRUE(says(with_finalize_at(1, 0), {"0SEND_F0", "comes before 0FINALIZE", "1RECV_F0", "after 1FINALIZE"}));
  Schedule dropped = good, early = good;
  dropped.rows[0].pop_back();
  EXPECT_TRUE(says(dropped, {"0STEP is missing", "rank 0"}));
  std::swap(early.rows[1].back(), early.rows[1][early.rows[1].size() - 2]);
  EXPECT_TRUE(says(early, {"comes after 1STEP"}));
}

}  // namespace
}  // namespace orthant::post_validation_test

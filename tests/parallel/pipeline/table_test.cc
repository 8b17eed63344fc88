// The table of pipeline schedules: it has the names of the run file, and every entry makes valid schedules for any
// numbers of ranks, stages and microbatches.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/errors.h"
#include "schedule/passes.h"
#include "schedule/validate.h"
#include "tests/parallel/pipeline/every_schedule.h"
#include "tests/support/random.h"

namespace orthant::table_test {
namespace {

TEST(Table, HasTheNamesOfTheRunFile) {
  std::set<std::string> names;
  for (const PipelineSchedule& each : pipeline_schedules()) EXPECT_TRUE(names.insert(std::string(each.name)).second);
  for (const char* name :
       {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dual_pipe_v"})
    EXPECT_EQ(pipeline_schedule(name).name, name);
  EXPECT_EQ(names.size(), 9u);
  EXPECT_THROW(pipeline_schedule("1F1B"), LogicError);
}

// Messages that take no time do not change the makespan.
TEST(Table, EverySizeIsValidWithAndWithoutMessages) {
  const Durations equal = Durations::of(1, 1, 1);
  for (int p : {1, 2, 3, 4, 5, 8, 12})
    for (int m : {1, 2, 3, 4, 5, 7, 8, 11, 16, 25}) {
      for (const auto& [name, schedule] : every_schedule(p, m)) {
        EXPECT_EQ(problems(schedule, m), std::vector<std::string>{}) << name << " " << p << " " << m;
        const Schedule sent = add_messages(schedule);
        EXPECT_EQ(problems(sent, m), std::vector<std::string>{}) << name << " " << p << " " << m;
        EXPECT_EQ(simulate(sent, equal).makespan, simulate(schedule, equal).makespan) << name << " " << p << " " << m;
      }
    }
}

TEST(Table, RandomSchedulesTerminateForAnyDurations) {
  Random random(81);
  for (int round = 0; round < 1000; ++round) {
    const int p = 1 + random.below(12), m = 1 + random.below(3 * p + 4);
    const int kinds = static_cast<int>(pipeline_schedules().size());
    const PipelineSchedule& made = pipeline_schedules()[static_cast<size_t>(random.below(kinds))];
    const int stages = made.any_stages ? 1 + random.below(4) : made.stages_per_rank;
    Durations times = Durations::of(1 + random.below(20), 1 + random.below(20), 1 + random.below(20));
    times.link_time = random.below(8);
    const Schedule schedule = add_messages(made.make({p, stages, m, times}));
    ASSERT_EQ(problems(schedule, m), std::vector<std::string>{}) << made.name << " " << p << " " << stages << " " << m;
    const Timeline timeline = simulate(schedule, times);
    // The makespan is at least the work of one rank, and at most the time of all microbatches one after another.
    const double work = stages * m * (times.times[0] + times.times[1]);
    EXPECT_GE(timeline.makespan, work);
    EXPECT_LE(timeline.makespan, p * work + 2 * m * p * stages * times.link_time) << made.name;
  }
}

// Extra warm-up forwards raise each rank's peak of live activations by their number. In V-shaped schedules it is
// rounded up to an even number; GPipe and DualPipeV hold no more.
TEST(Table, ExtraWarmupForwardsRaiseThePeak) {
  const Durations equal = Durations::of(1, 1, 1);
  for (const PipelineSchedule& each : pipeline_schedules())
    for (const int p : {1, 2, 3, 5, 8})
      for (const int extra_warmup_forwards : {1, 2, 4, 6})
        for (const int m : {1, 3, 6 * p + 6}) {
          const bool free = each.name == "gpipe" || each.name == "dual_pipe_v", pairs = each.name.find("v_") == 0;
          const Schedule schedule = each.make({p, each.stages_per_rank, m, equal, extra_warmup_forwards});
          EXPECT_EQ(problems(schedule, m), std::vector<std::string>{}) << each.name << " " << p << " " << m;
          EXPECT_EQ(problems(add_messages(schedule), m), std::vector<std::string>{}) << each.name << " " << p;
          if (m < 6 * p) continue;
          const std::vector<int> held = simulate(schedule, equal).peak_in_flight;
          std::vector<int> expected = simulate(each.make({p, each.stages_per_rank, m, equal}), equal).peak_in_flight;
          const int more = free                           ? 0
                           : pairs || each.name == "zb_v" ? (extra_warmup_forwards + 1) / 2 * 2
                                                          : extra_warmup_forwards;
          if (each.name == "v_min" || (each.name == "v_half" && p == 1)) {  // the increase differs by rank
            EXPECT_LE(*std::max_element(held.begin(), held.end()),
                      *std::max_element(expected.begin(), expected.end()) + more) << each.name << " " << p;
            continue;
          }
          for (int& count : expected) count += more;
          EXPECT_EQ(held, expected) << each.name << " " << p << " " << extra_warmup_forwards;
        }
}

TEST(Table, HasTheStagesPerRankOfEachSchedule) {
  for (const PipelineSchedule& each : pipeline_schedules()) {
    const Schedule schedule = each.make({3, each.stages_per_rank, 7});
    EXPECT_EQ(stage_count(schedule), 3 * each.stages_per_rank) << each.name;
  }
}

TEST(Table, InterleavedOfOneStageIs1F1B) {
  const PipelineSchedule& interleaved = pipeline_schedule("interleaved_1f1b");
  EXPECT_EQ(interleaved.make({.ranks = 3, .stages_per_rank = 1, .microbatches = 7, .extra_warmup_forwards = 1}),
            one_f_one_b(3, 7, 1));
  EXPECT_THROW(interleaved_1f1b(3, 1, 7), LogicError);
}

// Ranks and microbatches must be at least 1, and `extra_warmup_forwards` at least 0 where a schedule uses it.
TEST(Table, RefusesIllegalSizes) {
  for (const PipelineSchedule& each : pipeline_schedules()) {
    const int stages = each.stages_per_rank;
    EXPECT_THROW(each.make({.ranks = 0, .stages_per_rank = stages}), LogicError) << each.name;
    EXPECT_THROW(each.make({.stages_per_rank = stages, .microbatches = 0}), LogicError) << each.name;
    if (each.name == "gpipe" || each.name == "dual_pipe_v") continue;
    EXPECT_THROW(each.make({.stages_per_rank = stages, .extra_warmup_forwards = -1}), LogicError) << each.name;
  }
}

// A schedule that deadlocks, or that already has messages, is refused.
TEST(AddMessages, RefusesDeadlocksAndExistingMessages) {
  EXPECT_THROW(add_messages(parse_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n")), LogicError);
  EXPECT_THROW(add_messages(add_messages(gpipe(2, 2))), LogicError);
  // At the turn of a V both stages are on one rank, so nothing is sent.
  const Schedule v = add_messages(zb_v(1, 2));
  EXPECT_EQ(v, zb_v(1, 2));
}

}  // namespace
}  // namespace orthant::table_test

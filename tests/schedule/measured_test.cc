// Measured steps: their summary figures equal those of the simulation, their durations reproduce the step in
// simulate(), and their file is parsed back. Damaged files are refused.
#include "schedule/bubbles.h"
#include "schedule/measured.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "parallel/pipeline/v_schedules_plan.h"
#include "tests/schedule/generators.h"
#include "tests/support/says.h"

namespace orthant::measured_test {
namespace {

Durations uneven(int stages) {
  Durations durations;
  for (int stage = 0; stage < stages; ++stage)
    durations.stage_times.push_back(Durations::of(2 + 0.1 * stage, 3, 1 + 0.3 * stage).times);
  return durations;
}

/// The times of a simulated step, on the clock of a machine that has been up for 1000 s.
std::vector<std::vector<std::pair<double, double>>> times_of(const Schedule& schedule, const Timeline& timeline) {
  constexpr double kUp_s = 1000;
  std::vector<std::vector<std::pair<double, double>>> rows(schedule.rows.size());
  for (const Span& span : timeline.spans)
    rows[static_cast<size_t>(span.rank)].emplace_back(kUp_s + span.start, kUp_s + span.end);
  return rows;
}

/// A step in which each rank's Actions follow one another, 0.25 s each.
MeasuredStep measured_step() {
  MeasuredStep measured{.step = 12, .clock_error_s = 2.5e-6, .schedule = add_messages(v_half(4, 8)), .timeline = {}};
  std::vector<std::vector<std::pair<double, double>>> rows;
  for (const auto& row : measured.schedule.rows) {
    auto& times = rows.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      const double start_s = 0.25 * static_cast<double>(i);
      times.emplace_back(start_s, start_s + 0.25);
    }
  }
  measured.timeline = measured_timeline(measured.schedule, rows);
  measured.simulated_s = simulate(measured.schedule, own_durations(measured.timeline)).makespan;
  return measured;
}

TEST(Measured, CountsAsTheSimulationDoes) {
  for (const Schedule& schedule : {one_f_one_b(4, 8), zb_h1(3, 5), add_messages(v_half(4, 8))}) {
    const Timeline simulated = simulate(schedule, uneven(stage_count(schedule)));
    const Timeline measured = measured_timeline(schedule, times_of(schedule, simulated));
    EXPECT_NEAR(measured.makespan, simulated.makespan, 1e-9);
    EXPECT_NEAR(measured.bubble, simulated.bubble, 1e-9);
    EXPECT_NEAR(max_rank_bubble(measured), max_rank_bubble(simulated), 1e-9);
    EXPECT_EQ(measured.peak_in_flight, simulated.peak_in_flight);
    ASSERT_EQ(measured.spans.size(), simulated.spans.size());
    for (size_t i = 0; i < simulated.spans.size(); ++i) {
      EXPECT_EQ(measured.spans[i].action, simulated.spans[i].action);
      EXPECT_NEAR(measured.spans[i].start, simulated.spans[i].start, 1e-9);
      EXPECT_NEAR(measured.spans[i].end, simulated.spans[i].end, 1e-9);
    }
    for (size_t rank = 0; rank < simulated.busy.size(); ++rank)
      EXPECT_NEAR(measured.busy[rank], simulated.busy[rank], 1e-9);
  }
}

TEST(Measured, OwnBubbleIsCountedFromARanksFirstComputation) {
  EXPECT_EQ(max_rank_bubble(simulate(one_f_one_b(4, 8), Durations::of(1, 1, 1))), 9);
  EXPECT_EQ(max_rank_bubble(simulate(zb_h1(4, 8), Durations::of(1, 1, 1))), 3);
  EXPECT_EQ(max_rank_bubble(simulate(zb_h2(4, 8), Durations::of(1, 1, 1))), 0);  // although the last rank starts late
  EXPECT_EQ(max_rank_bubble(simulate(v_half(4, 8), Durations::of(1, 1, 1))), 5);
}

TEST(Measured, ItsDurationsGiveTheSameStepAgain) {
  const Schedule schedule = add_reductions(add_messages(v_half(4, 8)), std::vector<int>(8, 1));
  Durations durations = uneven(8);
  for (auto& stage : durations.stage_times) stage[static_cast<size_t>(ActionKind::REDUCE)] = 0.7;
  const Timeline timeline = simulate(schedule, durations);
  EXPECT_NEAR(simulate(schedule, own_durations(timeline)).makespan, timeline.makespan, 1e-9);
  EXPECT_NEAR(simulate(schedule, mean_durations(timeline)).makespan, timeline.makespan, 1e-9);
  // If the last microbatch takes half the time of the others, the mean durations reproduce no step.
  Durations halved;
  for (const auto& row : schedule.rows)
    for (const Action& action : row) halved.own[action] = durations.of(action) * (action.microbatch == 7 ? 0.5 : 1);
  const Timeline uneven_step = simulate(schedule, halved);
  EXPECT_NEAR(simulate(schedule, own_durations(uneven_step)).makespan, uneven_step.makespan, 1e-9);
  EXPECT_GT(std::abs(simulate(schedule, mean_durations(uneven_step)).makespan - uneven_step.makespan), 0.1);
}

TEST(Measured, MeansAreByStageAndKind) {
  Timeline one;
  one.spans = {{0, Stream::compute, {ActionKind::F, 0, 0}, 0, 1},
               {0, Stream::compute, {ActionKind::F, 0, 1}, 1, 4},
               {0, Stream::compute, {ActionKind::F, 1, 0}, 4, 9}};
  const Durations means = mean_durations(one);
  EXPECT_EQ(means.of({ActionKind::F, 0, 7}), 2);
  EXPECT_EQ(means.of({ActionKind::F, 1, 7}), 5);
}

// The cost of messages is the makespan minus that of a simulation with the measured durations.
TEST(Measured, WhatMessagesCostIsTheDifference) {
  const Schedule schedule = add_messages(one_f_one_b(4, 8));
  Durations durations = Durations::of(1, 1, 1);
  const double free_s = simulate(schedule, durations).makespan;
  durations.link_time = 0.5;
  const Timeline timeline = simulate(schedule, durations);
  EXPECT_GT(timeline.makespan, free_s + 1);
  EXPECT_NEAR(simulate(schedule, own_durations(timeline)).makespan, free_s, 1e-9);
}

TEST(Measured, ReadsBackWhatItWrote) {
  const MeasuredStep measured = measured_step();
  const MeasuredStep read = parse_measured_step(to_json(measured), "timeline.json");
  EXPECT_EQ(read.step, 12);
  EXPECT_EQ(read.clock_error_s, 2.5e-6);
  EXPECT_EQ(read.simulated_s, measured.simulated_s);
  EXPECT_EQ(read.schedule, measured.schedule);
  EXPECT_NEAR(read.timeline.makespan, measured.timeline.makespan, 1e-8);
  EXPECT_NEAR(read.timeline.bubble, measured.timeline.bubble, 1e-8);
}

TEST(Measured, NamesDamagedFile) {
  const std::string good = to_json(measured_step());
  const auto damaged = [&](const std::string& what, const std::string& by) {
    std::string text = good;
    return text.replace(text.find(what), what.size(), by);
  };
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {good.substr(0, good.size() / 2), "offset"},
           {damaged("PP:0F0", "PP:0G0"), "unknown kind 'G'"},
           {damaged("\"pid\":0,\"tid\"", "\"pid\":-1,\"tid\""), "the rank"},
           {damaged("PP:0F0", "PP:1000000000F0"), "stages"},
           {damaged("PP:0F0", "PP:2147483647F0"), "stage"},
           {damaged("\"clock_error_s\"", "\"error_s\""), "clock_error_s"},
           {damaged("\"ts\"", "\"at\""), "ts"}}) {
    const std::string message = message_of<DataError>([&] { parse_measured_step(text, "run/timeline.json"); });
    EXPECT_NE(message.find("run/timeline.json: "), std::string::npos) << message;
    EXPECT_NE(message.find(said), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace orthant::measured_test

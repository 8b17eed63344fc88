// Timelines on shared cores: the example of the header, limits, and a simulation in which ranks share cores as they
// become ready.
#include "schedule/shared_cores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/schedule/generators.h"

namespace orthant::shared_cores_test {
namespace {

double seconds(const Timeline& timeline, int64_t ranks_of_row, int64_t cores) {
  return seconds_on_shared_cores(timeline, timeline.makespan, std::vector<int64_t>(timeline.busy.size(), ranks_of_row),
                                 cores);
}

TEST(SharedCores, ExampleOfTheHeader) {
  const Action pass = {.kind = ActionKind::F};
  Timeline timeline{
      .spans = {{0, Stream::compute, pass, 0, 4}, {1, Stream::compute, pass, 2, 4}}, .makespan = 4, .busy = {4, 2}};
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 2}, 2), 6);
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 3}, 2), 6);
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 3, {1, 3}, 2), 4);
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 0}, 2), 4);
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 3}, 4), 4);
  // Ranks that all carry out the same row divide the cores evenly.
  const Timeline one_row{.spans = {{0, Stream::compute, pass, 0, 4}}, .makespan = 4, .busy = {4}};
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(one_row, 4, {3}, 2), 6);
  timeline.spans.push_back({0, Stream::collective, pass, 0, 2});  // copies on a second core
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 0}, 2), 4);
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 0}, 1), 6);
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 0}, 1, Collectives::waiting_for_link), 4);
  timeline.spans.back().stream = Stream::send;
  EXPECT_DOUBLE_EQ(seconds_on_shared_cores(timeline, 4, {1, 0}, 1), 4);
}

// Runs forward passes of p ranks and m microbatches, each of one second, on shared cores: at any time all ranks whose
// next pass is ready progress as fast as the slowest, which shares its core with most others.
double simulate_sharing(int p, int m, int cores) {
  std::vector<double> left(static_cast<size_t>(p), 1);
  std::vector<int> done(static_cast<size_t>(p), 0);
  double now = 0;
  while (done.back() < m) {
    std::vector<size_t> ready;
    for (size_t rank = 0; rank < left.size(); ++rank) {
      if (done[rank] < m && (rank == 0 || done[rank - 1] > done[rank])) ready.push_back(rank);
    }
    const double on_one_core = std::ceil(static_cast<double>(ready.size()) / static_cast<double>(cores));
    const double rate = 1 / std::max(1.0, on_one_core);
    double least = 1;
    for (const size_t rank : ready) least = std::min(least, left[rank]);
    now += least / rate;
    std::vector<size_t> ended;
    for (const size_t rank : ready) {
      left[rank] -= least;
      if (left[rank] < 1e-12) ended.push_back(rank);
    }
    for (const size_t rank : ended) left[rank] = 1, ++done[rank];
  }
  return now;
}

Schedule forward_passes(int p, int m) {
  Schedule schedule = round_robin_stages(p, 1);
  for (int rank = 0; rank < p; ++rank) {
    for (int i = 0; i < m; ++i) schedule.rows[static_cast<size_t>(rank)].push_back({ActionKind::F, rank, i});
  }
  return schedule;
}

TEST(SharedCores, EqualsASimulationOfRanksThatShare) {
  for (const int p : {1, 2, 4, 7}) {
    for (const int m : {1, 3, 8}) {
      for (const int cores : {1, 2, 3, 8}) {
        const Timeline timeline = simulate(forward_passes(p, m), Durations::of(1, 1, 1));
        EXPECT_NEAR(seconds(timeline, 1, cores), simulate_sharing(p, m, cores), 1e-9) << p << m << cores;
      }
    }
  }
}

TEST(SharedCores, NeverBeatTheWorkOrTheTimeline) {
  const Timeline timeline = simulate(one_f_one_b(4, 8), Durations::of(1, 1, 1));
  double work = 0;
  for (const double busy : timeline.busy) work += busy;
  for (const int64_t cores : {1, 2, 3, 4, 9}) {
    EXPECT_GE(seconds(timeline, 1, cores), timeline.makespan);
    EXPECT_GE(seconds(timeline, 1, cores), work / static_cast<double>(cores));
  }
  EXPECT_DOUBLE_EQ(seconds(timeline, 1, 4), timeline.makespan);
  EXPECT_DOUBLE_EQ(seconds(timeline, 1, 1), work);
  EXPECT_DOUBLE_EQ(seconds(timeline, 3, 3), work);
}

}  // namespace
}  // namespace orthant::shared_cores_test

// Makespans, bubbles and peak live activations of all schedules equal the closed forms of their papers, for many
// numbers of ranks and microbatches.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tests/parallel/pipeline/every_schedule.h"

namespace orthant::bubbles_test {
namespace {

const std::array<std::array<double, 3>, 3> kTimes = {{{1, 1, 1}, {2, 3, 1}, {10, 9, 7}}};  // durations of F, I and W

Timeline timed(const Schedule& schedule, std::array<double, 3> time = {1, 1, 1}) {
  return simulate(schedule, Durations::of(time[0], time[1], time[2]));
}

std::vector<int> peaks(const Schedule& schedule) { return timed(schedule).peak_in_flight; }

// Published values for 4 ranks and 8 microbatches, where F, I and W of one stage take 1.
TEST(Bubbles, OfFourRanksAndEightMicrobatches) {
  EXPECT_EQ(makespan_bubble(timed(gpipe(4, 8))), 9);
  EXPECT_EQ(makespan_bubble(timed(one_f_one_b(4, 8))), 9);
  EXPECT_EQ(makespan_bubble(timed(interleaved_1f1b(4, 2, 8))), 9);
  EXPECT_EQ(timed(interleaved_1f1b(4, 2, 8)).makespan, 57);
  EXPECT_EQ(max_rank_bubble(timed(zb_h1(4, 8))), 3);
  EXPECT_EQ(timed(zb_h1(4, 8)).makespan, 27);
  EXPECT_EQ(max_rank_bubble(timed(zb_h2(4, 8))), 0);
  EXPECT_EQ(max_rank_bubble(timed(zb_v(4, 8))), 0);
  EXPECT_EQ(max_rank_bubble(timed(v_half(4, 8))), 5);
  EXPECT_EQ(timed(v_half(4, 8)).makespan, 53);
  EXPECT_EQ(max_rank_bubble(timed(v_min(4, 8))), 11);
  // The published drawing of 1F1B has f = 2 and b + w = 4.
  EXPECT_EQ(timed(one_f_one_b(4, 8), {2, 2, 2}).makespan, 66);
}

// With p ranks, the bubble is (p-1)(f+b+w) for GPipe and 1F1B, (p-1)(f+b-w) for ZB-H1, and (p-1)(f+b-2w) for ZB-H2 with
// at least 2p-1 microbatches.
TEST(Bubbles, OfOneStageARank) {
  for (int p = 1; p <= 16; ++p)
    for (const auto& [f, b, w] : kTimes)
      for (int m : {p, 2 * p - 1, 2 * p, 3 * p + 2}) {
        const double of_1f1b = (p - 1) * (f + b + w);
        EXPECT_EQ(makespan_bubble(timed(gpipe(p, m), {f, b, w})), of_1f1b) << p << " " << m;
        EXPECT_EQ(makespan_bubble(timed(one_f_one_b(p, m), {f, b, w})), of_1f1b) << p << " " << m;
        EXPECT_EQ(max_rank_bubble(timed(zb_h1(p, m), {f, b, w})), (p - 1) * (f + b - w)) << p << " " << m;
        if (m < 2 * p - 1) continue;
        EXPECT_EQ(max_rank_bubble(timed(zb_h2(p, m), {f, b, w})), (p - 1) * (f + b - 2 * w)) << p << " " << m;
      }
}

// The bubble is (p-1)(f+b+w) in the durations of one stage, which shrink with the number v of stages per rank.
TEST(Bubbles, OfInterleaved1F1BShrinkByTheStagesOfARank) {
  for (int p = 2; p <= 16; ++p)
    for (int v : {2, 3, 4})
      for (const auto& [f, b, w] : kTimes)
        for (int m : {p, 2 * p, 3 * p}) {
          const Timeline t = timed(interleaved_1f1b(p, v, m), {f, b, w});
          EXPECT_EQ(makespan_bubble(t), (p - 1) * (f + b + w)) << p << " " << v << " " << m;  // f, b, w: of one stage
          for (int r = 0; r < p; ++r)
            EXPECT_EQ(t.peak_in_flight[static_cast<size_t>(r)], std::min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1));
        }
}

// With equal durations, p ranks and K peak live activations, V-Half and V-Min have a bubble of 6p - 3K - 1. V-Min has 4
// more if p = 2 mod 3.
TEST(Bubbles, OfVSchedules) {
  for (int p = 1; p <= 16; ++p)
    for (int m : {2 * p, 2 * p + 1, 3 * p + 2, 6 * p}) {
      const Timeline zb = timed(zb_v(p, m)), half = timed(v_half(p, m)), min = timed(v_min(p, m));
      EXPECT_EQ(max_rank_bubble(zb), 0) << p << " " << m;
      const int of_half = 2 * (p / 2 + 1), of_min = 2 * ((p + 4) / 3);
      EXPECT_EQ(*std::max_element(zb.peak_in_flight.begin(), zb.peak_in_flight.end()), 2 * p) << p << " " << m;
      EXPECT_EQ(*std::max_element(half.peak_in_flight.begin(), half.peak_in_flight.end()), p == 1 ? 2 : of_half)
          << p << " " << m;
      EXPECT_EQ(*std::max_element(min.peak_in_flight.begin(), min.peak_in_flight.end()), p == 1 ? 2 : of_min)
          << p << " " << m;
      if (p < 3) continue;  // the closed forms below hold from 3 ranks on
      EXPECT_EQ(max_rank_bubble(half), 6 * p - 3 * of_half - 1) << p << " " << m;
      EXPECT_EQ(max_rank_bubble(half), p % 2 == 0 ? 3 * p - 7 : 3 * p - 4);
      EXPECT_EQ(max_rank_bubble(min), 6 * p - 3 * of_min - 1 + (p % 3 == 2 ? 4 : 0)) << p << " " << m;
      EXPECT_EQ(max_rank_bubble(timed(dual_pipe_v(p, m))), p - 1) << p << " " << m;
      for (const int peak : peaks(dual_pipe_v(p, m))) EXPECT_EQ(peak, 2 * p + 1) << p << " " << m;
    }
}

// Peak live (stage, microbatch) pairs of each rank.
TEST(Peaks, OfEightRanksAndThirtyTwoMicrobatches) {
  EXPECT_EQ(peaks(one_f_one_b(8, 32)), (std::vector<int>{8, 7, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(peaks(interleaved_1f1b(8, 2, 32)), (std::vector<int>{23, 21, 19, 17, 15, 13, 11, 9}));
  EXPECT_EQ(peaks(zb_h1(8, 32)), std::vector<int>(8, 8));
  EXPECT_EQ(peaks(zb_h2(8, 32)), std::vector<int>(8, 15));
  EXPECT_EQ(peaks(zb_v(8, 32)), std::vector<int>(8, 16));
  EXPECT_EQ(peaks(v_half(8, 32)), std::vector<int>(8, 10));
  const std::vector<int> of_v_min = peaks(v_min(8, 32));
  EXPECT_EQ(*std::max_element(of_v_min.begin(), of_v_min.end()), 8);
}

// From 8p microbatches on, the peaks are constant. Only GPipe's grow.
TEST(Peaks, DoNotGrowWithTheMicrobatches) {
  for (int p : {2, 3, 5, 8}) {
    const std::vector<Made> few = every_schedule(p, 2), some = every_schedule(p, 8 * p);
    const std::vector<Made> many = every_schedule(p, 24 * p);
    for (size_t i = 0; i < some.size(); ++i) {
      if (some[i].name.starts_with("gpipe")) continue;
      const std::vector<int> held = peaks(some[i].schedule), less = peaks(few[i].schedule);
      EXPECT_EQ(peaks(many[i].schedule), held) << some[i].name << " " << p;
      EXPECT_LE(*std::max_element(less.begin(), less.end()), *std::max_element(held.begin(), held.end()))
          << some[i].name << " " << p;
    }
  }
}

TEST(Peaks, OfActivationsForBackwardAndWeights) {
  // M_B and M_W of the zero-bubble paper in units of s b h: activations held until I, and from I to W. Heads times
  // sequence length is ten times the width, so M_B = 34 + 5 x 10, and M_W = 32.
  const double M_B = 84, M_W = 32;
  for (int p : {1, 2, 3, 4, 8})
    for (int m : {2 * p, 4 * p, 9 * p}) {
      const std::vector<Kept> stages(static_cast<size_t>(p), {M_B, M_W});
      const std::vector<double> h1 = peak_kept(zb_h1(p, m), stages), h2 = peak_kept(zb_h2(p, m), stages);
      const std::vector<double> whole = peak_kept(one_f_one_b(p, m), stages);
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(whole[static_cast<size_t>(r)], (p - r) * M_B);
        EXPECT_EQ(h1[static_cast<size_t>(r)], (p - r) * M_B + r * M_W) << p << " " << m << " " << r;
        EXPECT_EQ(h2[static_cast<size_t>(r)], (2 * (p - r) - 1) * M_B + 2 * r * M_W) << p << " " << m << " " << r;
      }
    }
  // If each activation counts 1, the peaks are the live activations of the timeline. The last case has stages of
  // different sizes.
  for (const auto& [name, schedule] : every_schedule(4, 9)) {
    const auto stages = static_cast<size_t>(stage_count(schedule));
    const std::vector<int> live = peaks(schedule);
    EXPECT_EQ(peak_kept(schedule, std::vector<Kept>(stages)), std::vector<double>(live.begin(), live.end())) << name;
  }
  EXPECT_EQ(peak_kept(v_half(2, 1), {{1, 0}, {10, 0}, {100, 0}, {1000, 0}}), (std::vector<double>{1001, 110}));
}

// V-Half and V-Min place their W by the given durations. That never makes the step longer than a placement for equal
// durations, often shortens it by more than 1 %, and holds no more activations.
TEST(Durations, PlaceWeightPassesWithoutMoreMemory) {
  const std::vector<std::array<double, 3>> times = {{2, 3, 1}, {10, 9, 7}, {1, 2, 1}, {0.9, 1.3, 0.7}};
  int better = 0;
  for (int p : {3, 4, 6, 8})
    for (int m : {3, 2 * p, 4 * p + 1})
      for (const auto& [f, b, w] : times) {
        const Durations real = Durations::of(f, b, w);
        for (const bool half : {true, false}) {
          const Timeline fitted = simulate(half ? v_half(p, m, real) : v_min(p, m, real), real);
          const Timeline plain = simulate(half ? v_half(p, m) : v_min(p, m), real);
          EXPECT_LE(fitted.makespan, plain.makespan * (1 + 1e-12)) << p << " " << m << " " << f << " " << half;
          better += fitted.makespan < plain.makespan * 0.99;
          const int most = half ? 2 * (p / 2 + 1) : 2 * ((p + 4) / 3);
          for (const int peak : fitted.peak_in_flight) EXPECT_LE(peak, most);
        }
      }
  EXPECT_GT(better, 10);
}

}  // namespace
}  // namespace orthant::bubbles_test

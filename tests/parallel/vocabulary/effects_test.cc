// The cost of vocabulary parallelism in each schedule: peak activations and bubbles equal published values and closed
// forms, and do not grow with the number of microbatches. Durations are those of one stage unless stated otherwise.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/parallel/vocabulary/cases.h"

namespace orthant::effects_test {
namespace {

using enum ActionKind;

const VocabularyAlgorithm& naive = vocabulary_algorithm("naive");
const VocabularyAlgorithm& algorithm_1 = vocabulary_algorithm("algorithm_1");
const VocabularyAlgorithm& algorithm_2 = vocabulary_algorithm("algorithm_2");

/// The Timeline of a schedule of the table with a sharded output layer, but without the embedding.
Timeline timed(const char* name, const VocabularyAlgorithm& algorithm, int ranks, int microbatches,
               const Durations& durations, int later = -1) {
  return simulate(cut(name, algorithm, ranks, microbatches, durations, later, false), durations);
}

/// F, I and W take 1, S and T take output_s / 2 each, and a barrier takes barrier_s.
Durations equal(double barrier_s = 0, double output_s = 1) {
  Durations out = with_output(Durations::of(1, 1, 1), output_s);
  out.barrier_time = barrier_s;
  return out;
}

int most(const Timeline& timeline) {
  return *std::max_element(timeline.peak_in_flight.begin(), timeline.peak_in_flight.end());
}

// k barriers raise each rank's peak by k microbatches, which are 2k live pairs in schedules with two stages per rank.
// GPipe holds all microbatches anyway.
TEST(Peaks, OfEightRanksAndThirtyTwoMicrobatches) {
  for (const VocabularyAlgorithm& each : vocabulary_algorithms()) {
    const int k = each.barriers;
    const auto peaks = [&](const char* name) { return timed(name, each, 8, 32, equal()).peak_in_flight; };
    std::vector<int> falling, falling_twice;
    for (int rank = 0; rank < 8; ++rank) {
      falling.push_back(8 - rank + k);
      falling_twice.push_back(23 - 2 * rank + 2 * k);
    }
    EXPECT_EQ(peaks("1f1b"), falling) << k;
    EXPECT_EQ(peaks("interleaved_1f1b"), falling_twice) << k;
    EXPECT_EQ(peaks("gpipe"), std::vector<int>(8, 32)) << k;
    EXPECT_EQ(peaks("zb_h1"), std::vector<int>(8, 8 + k)) << k;
    EXPECT_EQ(peaks("zb_h2"), std::vector<int>(8, 15 + k)) << k;
    EXPECT_EQ(peaks("zb_v"), std::vector<int>(8, 16 + 2 * k)) << k;
    EXPECT_EQ(peaks("v_half"), std::vector<int>(8, 10 + 2 * k)) << k;
    EXPECT_EQ(most(timed("v_min", each, 8, 32, equal())), 8 + 2 * k) << k;
  }
}

// With algorithm 2, TW comes before the next S, so each rank keeps the softmax of one microbatch at a time.
TEST(Peaks, OneSoftmaxIsKeptWhereTStandsBeforeTheNextS) {
  for (const PipelineSchedule& made : pipeline_schedules())
    for (const int m : {1, 2, 9, 40}) {
      const Schedule schedule = cut(made.name, algorithm_2, 4, m, equal());
      const std::vector<Kept> nothing(schedule.stage_owner.size(), {0, 0});
      EXPECT_EQ(peak_kept(schedule, nothing, 1), std::vector<double>(4, 1)) << made.name << " " << m;
    }
}

// In the steady state, a rank has at most two embedded microbatches that the first stage has not started.
TEST(Peaks, AtMostTwoMicrobatchesAreEmbeddedAhead) {
  for (const char* name : {"1f1b", "zb_h1", "zb_h2"})
    for (const VocabularyAlgorithm& each : vocabulary_algorithms()) {
      const Timeline timeline = simulate(cut(name, each, 4, 40, equal(0.1)), equal(0.1));
      for (const Span& forward : timeline.spans) {
        // The warm-up is skipped, because its forwards follow each other faster than those of the steady state.
        if (forward.action.kind != F || forward.action.stage != 0 || forward.action.microbatch < 12) continue;
        std::vector<int> ahead(4, 0);
        for (const Span& other : timeline.spans)
          if (other.action.kind == E && other.end <= forward.start)
            ahead[static_cast<size_t>(other.rank)] += other.action.microbatch >= forward.action.microbatch;
        for (const int count : ahead) EXPECT_LE(count, 2) << name << " " << each.name << to_string(forward.action);
      }
    }
}

// The bubble of 1F1B is at most 3 (p-1) + 2 barrier_s for f = i = w = 1, and equal for 64 and 128 microbatches.
TEST(Bubbles, Of1F1BGrowByTwoBarriersAtMostAndNotWithMicrobatches) {
  for (const VocabularyAlgorithm& each : vocabulary_algorithms())
    for (const int p : {4, 7, 16, 32})
      for (const double output_s : {0.1, 0.5, 1.0})
        for (const double barrier_s : {0.0, 0.3, 1.0}) {
          const Durations durations = equal(barrier_s, output_s);
          const double bubble = makespan_bubble(timed("1f1b", each, p, 64, durations));
          EXPECT_LE(bubble, 3 * (p - 1) + 2 * barrier_s + 1e-9) << each.name << p << " " << output_s;
          EXPECT_NEAR(makespan_bubble(timed("1f1b", each, p, 128, durations)), bubble, 1e-9) << each.name << " " << p;
        }
}

TEST(Bubbles, OfZeroBubbleSchedulesGrowByOneBarrier) {
  for (const VocabularyAlgorithm& each : vocabulary_algorithms())
    for (const int p : {2, 4, 8, 12})
      for (const double barrier_s : {0.0, 0.5, 1.0}) {
        const Durations durations = equal(barrier_s);
        EXPECT_LE(max_rank_bubble(timed("zb_h1", each, p, 4 * p, durations)), p - 1 + barrier_s)
            << each.name << " " << p;
        EXPECT_LE(max_rank_bubble(timed("zb_h2", each, p, 4 * p, durations)), barrier_s) << each.name << " " << p;
      }
  for (int p = 1; p <= 16; ++p)
    for (const int m : {2 * p, 4 * p + 1}) {
      const Timeline v = timed("zb_v", algorithm_2, p, m, equal());
      EXPECT_EQ(max_rank_bubble(v), 0) << p << " " << m;
      EXPECT_EQ(v.peak_in_flight, std::vector<int>(static_cast<size_t>(p), std::min(2 * p + 2, 2 * m)))
          << p << " " << m;
    }
}

TEST(Bubbles, OfVHalfAndVMinShrink) {
  // The extra warm-up forwards also fill idle time. With K live activations, the paper's bound of the bubble is
  // 6p - 3K - 1. Without vocabulary parallelism, the bubbles are 17 and 27.
  EXPECT_EQ(max_rank_bubble(timed("v_min", algorithm_2, 8, 32, equal())), 21);
  EXPECT_EQ(max_rank_bubble(timed("v_min", algorithm_1, 8, 32, equal())), 15);
  EXPECT_EQ(max_rank_bubble(timed("v_half", algorithm_2, 8, 32, equal())), 12);
  EXPECT_EQ(max_rank_bubble(timed("v_half", algorithm_1, 8, 32, equal())), 6.5);
  EXPECT_NEAR(max_rank_bubble(timed("v_half", algorithm_1, 8, 32, equal(0, 0.2))), 6.9, 1e-9);
  EXPECT_EQ(max_rank_bubble(simulate(v_half(8, 32), equal())), 17);
  EXPECT_EQ(max_rank_bubble(simulate(v_min(8, 32), equal())), 27);
  // Four ranks, eight microbatches and two barriers, as in listings_test.cc.
  const Timeline four = timed("v_half", algorithm_1, 4, 8, equal());
  EXPECT_EQ(four.makespan, 59);
  EXPECT_EQ(max_rank_bubble(four), 2);
  EXPECT_EQ(four.peak_in_flight, std::vector<int>(4, 10));
}

// In interleaved 1F1B with algorithm 2, one extra forward of one stage is enough if a barrier takes at most one
// forward.
TEST(Bubbles, OfInterleavedNeedOneForwardMoreOnly) {
  for (const int p : {2, 4, 8})
    for (const int v : {2, 3, 4})
      for (const double output_s : {0.2, 1.0})
        for (const double barrier_s : {0.0, 0.5, 1.0}) {
          const Durations durations = equal(barrier_s, output_s);
          const auto of = [&](int m, int later) {
            const Schedule plain = interleaved_1f1b(p, v, m, later);
            return simulate(add_vocabulary(plain, algorithm_2, durations, false), durations);
          };
          const Timeline t = of(8 * p, 1);
          EXPECT_LE(makespan_bubble(t), 3 * (p - 1) + 2 * barrier_s + 1e-9) << p << " " << v << " " << barrier_s;
          EXPECT_NEAR(makespan_bubble(of(16 * p, 1)), makespan_bubble(t), 1e-9) << p << " " << v << " " << barrier_s;
          EXPECT_EQ(most(t), p * (v + 1) - 1 + 1);
        }
  // With one extra forward, barriers longer than a forward delay every microbatch. With two, which is a whole
  // microbatch of two stages, they do not.
  const Durations slow = equal(2);
  const auto grows = [&](int later) {
    const auto bubble = [&](int m) {
      const Schedule plain = interleaved_1f1b(4, 2, m, later);
      return makespan_bubble(simulate(add_vocabulary(plain, algorithm_2, slow, false), slow));
    };
    return bubble(64) - bubble(32);
  };
  EXPECT_GT(grows(1), 16);
  EXPECT_NEAR(grows(2), 0, 1e-9);
}

TEST(Overlap, BubblesDoNotGrowWithMicrobatches) {
  const auto growth = [](const char* name, const VocabularyAlgorithm& algorithm, double barrier_s, int later = -1) {
    const Durations durations = equal(barrier_s);
    return makespan_bubble(timed(name, algorithm, 8, 128, durations, later)) -
           makespan_bubble(timed(name, algorithm, 8, 64, durations, later));
  };
  for (const VocabularyAlgorithm& each : vocabulary_algorithms()) {
    for (const double barrier_s : {0.25, 0.5, 1.0}) EXPECT_NEAR(growth("1f1b", each, barrier_s), 0, 1e-9) << each.name;
    if (each.name == naive.name) continue;
    for (const char* name : {"zb_v", "v_half", "v_min"})
      for (const double barrier_s : {0.5, 1.0, 2.0})
        EXPECT_NEAR(growth(name, each, barrier_s), 0, 1e-9) << name << " " << each.name << " " << barrier_s;
    // The control: without extra warm-up forwards, every microbatch waits.
    EXPECT_GT(growth("zb_v", each, 0.5, 0), 30) << each.name;
    EXPECT_GT(growth("1f1b", each, 0.5, 0), 30) << each.name;
  }
  // In the interlaced pipeline every microbatch waits for its barriers, even if other computation is ready.
  const auto bubble = [](int m) { return makespan_bubble(simulate(interlaced(8, m), equal(0.5))); };
  EXPECT_GE(bubble(128) - bubble(64), 64 * 0.5 - 1e-9);
}

TEST(Interlaced, HoldsOneAndAHalfTimes1F1B) {
  for (int p = 1; p <= 16; ++p)
    for (const int m : {3 * p, 5 * p}) {
      std::vector<int> peaks;
      for (int rank = 0; rank < p; ++rank) peaks.push_back(3 * p / 2 - rank);
      EXPECT_EQ(simulate(interlaced(p, m), equal()).peak_in_flight, peaks) << p << " " << m;
    }
  // If barriers take no time, the steady state has no bubble: 48 more microbatches take 48 x 3.
  const auto makespan = [](int m) {
    return simulate(interlaced(6, m), with_output(Durations::of(1, 1, 1), 1e-9)).makespan;
  };
  EXPECT_NEAR(makespan(96) - makespan(48), 48 * 3, 1e-6);
}

// The published closed form of 1F1B is valid, rank r of p holds p - r + k microbatches, and the bubble is at most
// (p-1)(f+b) + k f.
TEST(ClosedForm, HasItsPeaksAndBubble) {
  Random random(91);
  for (int round = 0; round < 400; ++round) {
    const int p = 1 + random.below(16), m = 1 + random.below(4 * p);
    const double f = 10, bb = f * (1.2 + 0.1 * random.below(17)), o = 1 + random.below(10);
    const VocabularyAlgorithm& algorithm = round % 2 == 0 ? algorithm_1 : algorithm_2;
    const Durations durations = with_output(Durations::of(f, bb / 2, bb / 2), o);
    const Schedule schedule = vocabulary_one_f_one_b(p, m, algorithm, durations, random.below(2) == 0);
    ASSERT_EQ(problems(schedule, m), std::vector<std::string>{}) << p << " " << m << "\n" << to_csv(schedule);
    const Timeline t = simulate(schedule, durations);
    EXPECT_LE(makespan_bubble(t), (p - 1) * (f + bb) + algorithm.barriers * f + 1e-9) << p << " " << m;
    for (int rank = 0; rank < p; ++rank)
      EXPECT_EQ(t.peak_in_flight[static_cast<size_t>(rank)], std::min(m, p - rank + algorithm.barriers))
          << p << " " << m;
  }
}

TEST(Calibration, AMeasuredStepOfTheAuthors) {
  // Durations in milliseconds on 8 GPUs, with 128 microbatches and one barrier. The authors' released log has 5951 ms a
  // step with vocabulary parallelism, and 11722 ms without.
  Durations durations = with_output(Durations::of(11.31, 22.51 / 2, 22.51 / 2), 8.36).with(E, 0.49).with(EB, 0.79);
  durations.barrier_time = 0.35;
  durations.link_time = 0.3;
  const double universal = simulate(cut("1f1b", algorithm_2, 8, 128, durations), durations).makespan;
  const double closed = simulate(vocabulary_one_f_one_b(8, 128, algorithm_2, durations), durations).makespan;
  for (const double ms : {universal, closed}) EXPECT_TRUE(ms > 5750 && ms < 6000) << ms;

  Durations whole = Durations::of(10.5, 10.5, 10.5);
  whole.link_time = 0.3;
  whole.stage_times.assign(8, whole.times);
  whole.stage_times.back() = Durations::of(36.8, 26.2, 26.2).times;
  const double ms = simulate(one_f_one_b(8, 128), whole).makespan;
  EXPECT_TRUE(ms > 11500 && ms < 11800) << ms;
}

}  // namespace
}  // namespace orthant::effects_test

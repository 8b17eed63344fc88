// simulate() against the published bubbles and peaks of GPipe, 1F1B and ZB-H1, and against cases worked by hand.
#include "schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "base/errors.h"
#include "tests/schedule/generators.h"

namespace orthant::simulate_test {
namespace {

const Span& span_of(const Timeline& timeline, const char* action) {
  for (const Span& span : timeline.spans)
    if (to_string(span.action) == action) return span;
  throw std::runtime_error(action);
}

// With p ranks and m microbatches, both have a bubble of (p - 1)/(m + p - 1). A rank r holds at most m live
// microbatches under GPipe, and min(m, p - r) under 1F1B.
TEST(Simulate, BubbleAndPeaksOfGpipeAnd1F1B) {
  const Durations durations = Durations::of(1, 1, 1);
  for (int p = 1; p <= 16; ++p)
    for (int m : {1, 2, 3, 5, 8, 16, 37}) {
      const double bubble = static_cast<double>(p - 1) / (m + p - 1);
      const Timeline g = simulate(gpipe(p, m), durations);
      const Timeline o = simulate(one_f_one_b(p, m), durations);
      EXPECT_EQ(g.bubble, bubble) << p << " " << m;
      EXPECT_EQ(o.bubble, bubble) << p << " " << m;
      EXPECT_EQ(o.makespan, 3.0 * (m + p - 1));
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(g.peak_in_flight[static_cast<size_t>(r)], m);
        EXPECT_EQ(o.peak_in_flight[static_cast<size_t>(r)], std::min(m, p - r));
        EXPECT_EQ(o.busy[static_cast<size_t>(r)], 3.0 * m);
      }
    }
}

// The makespan of both is (f + b + w)(m + p - 1), with f = 10, b = 9, w = 7.
TEST(Simulate, UnequalTimesOfForwardAndBackward) {
  const Durations durations = Durations::of(10, 9, 7);
  for (int p : {2, 3, 5, 8})
    for (int m : {8, 13}) {
      EXPECT_EQ(simulate(gpipe(p, m), durations).makespan, 26.0 * (m + p - 1));
      EXPECT_EQ(simulate(one_f_one_b(p, m), durations).makespan, 26.0 * (m + p - 1));
    }
}

TEST(Simulate, SplitBackwardFillsTheBubbleOfZbH1) {
  EXPECT_EQ(simulate(zb_h1(4, 8), Durations::of(1, 1, 1)).makespan, 27);
  for (int p : {2, 4, 8})
    for (int m : {p, 2 * p, 3 * p}) {
      const Timeline t = simulate(zb_h1(p, m), Durations::of(1, 1, 1));
      // The bubble of a rank is (p - 1)(f + b - w), against (p - 1)(f + b + w) for 1F1B.
      EXPECT_EQ(t.makespan, 3.0 * m + (p - 1)) << p << " " << m;
      for (int peak : t.peak_in_flight) EXPECT_EQ(peak, p);
    }
}

TEST(Simulate, LinksByHand) {
  Durations durations = Durations::of(1, 1, 1);
  durations.link_time = 0.5;
  for (const Schedule& schedule : {gpipe(2, 1), add_messages(gpipe(2, 1))}) {
    const Timeline t = simulate(schedule, durations);
    EXPECT_EQ(span_of(t, "0F0").end, 1);
    EXPECT_EQ(span_of(t, "1F0").start, 1.5);
    EXPECT_EQ(span_of(t, "1B0").end, 4.5);
    EXPECT_EQ(span_of(t, "0B0").start, 5);
    EXPECT_EQ(t.makespan, 7);
  }
  const Timeline t = simulate(add_messages(gpipe(2, 1)), durations);
  EXPECT_EQ(span_of(t, "0SEND_F0").start, 1);
  EXPECT_EQ(span_of(t, "1RECV_F0").end, 1.5);
  EXPECT_EQ(span_of(t, "1RECV_F0").stream, Stream::receive);
}

TEST(Simulate, EachLinkHasATimeOfItsOwn) {
  // Three ranks, the last on another host. A message takes 0.5 s within a host, 4 s to the other host, and 2 s back.
  Durations durations = Durations::of(1, 1, 1);
  durations.link_time = 0.5;
  durations.link_times = {{{1, 2}, 4}, {{2, 1}, 2}};
  for (const Schedule& schedule : {gpipe(3, 1), add_messages(gpipe(3, 1))}) {
    const Timeline t = simulate(schedule, durations);
    EXPECT_EQ(span_of(t, "1F0").start, 1.5);
    EXPECT_EQ(span_of(t, "2F0").start, 6.5);
    EXPECT_EQ(span_of(t, "2B0").end, 9.5);
    EXPECT_EQ(span_of(t, "1B0").start, 11.5);
    EXPECT_EQ(span_of(t, "0B0").start, 14);
    EXPECT_EQ(t.makespan, 16);
  }
  const Timeline t = simulate(add_messages(gpipe(3, 1)), durations);
  EXPECT_EQ(span_of(t, "1SEND_F0").end, 6.5);
  EXPECT_EQ(span_of(t, "2RECV_F0").start, 2.5);
  EXPECT_EQ(span_of(t, "1RECV_B0").start, 9.5);
}

TEST(Simulate, SendStreamCarriesOneMessageAtATime) {
  // Two results at 1 s and 2 s over a link that takes 5 s: the stream is free for the second at 6 s, so it arrives at
  // 11 s.
  Durations durations = Durations::of(1, 1, 1);
  durations.link_time = 5;
  const Timeline t = simulate(add_messages(gpipe(2, 2)), durations);
  EXPECT_EQ(span_of(t, "1F0").start, 6);
  EXPECT_EQ(span_of(t, "1F1").start, 11);
}

TEST(Simulate, AReceivePostedEarlyDoesNotHoldUpTheRow) {
  const Schedule schedule = parse_csv("0RECV_B0,0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
  const Timeline t = simulate(schedule, Durations::of(1, 1, 1));
  EXPECT_EQ(t.makespan, 6);
  EXPECT_EQ(span_of(t, "0RECV_B0").end, 4);
}

TEST(Simulate, MessagesWithoutCostChangeNoComputation) {
  Random random(41);
  for (int round = 0; round < 300; ++round) {
    const int ranks = 1 + random.below(4);
    const Schedule plain = random_schedule(random, ranks, ranks + random.below(4), 1 + random.below(6));
    const Durations durations = Durations::of(1 + random.below(5), 1 + random.below(5), 1 + random.below(5));
    const Timeline a = simulate(plain, durations);
    const Timeline b = simulate(with_weights(add_messages(plain)), durations);
    EXPECT_EQ(a.makespan, b.makespan);
    EXPECT_EQ(a.busy, b.busy);
    EXPECT_EQ(a.peak_in_flight, b.peak_in_flight);
    std::vector<Span> computation = b.spans;
    std::erase_if(computation, [](const Span& span) { return span.stream != Stream::compute; });
    EXPECT_EQ(a.spans, computation);
  }
}

TEST(Simulate, ReductionsOverlapLaterComputation) {
  const Schedule schedule = parse_csv("0F0,1F0,1B0,1REDUCE_GRAD1,1REDUCE_GRAD0,0B0,0REDUCE_GRAD0\n");
  Durations durations = Durations::of(1, 1, 1);
  durations.reductions = {{{3}}, {{3}, {0.5}}};
  const Timeline beside = simulate(schedule, durations);
  EXPECT_EQ(span_of(beside, "1REDUCE_GRAD1").start, 4);
  EXPECT_EQ(span_of(beside, "1REDUCE_GRAD0").start, 4.5);
  EXPECT_EQ(span_of(beside, "0B0").start, 4);
  EXPECT_EQ(beside.makespan, 10.5);  // its stream is free at 7.5
  durations.overlap_reduce = false;
  const Timeline waited = simulate(schedule, durations);
  EXPECT_EQ(span_of(waited, "0B0").start, 7.5);
  EXPECT_EQ(waited.makespan, 12.5);
}

TEST(Simulate, ReductionsBeginWhenTheirGradientsAreComplete) {
  // Stage 1 has B from 2 s to 4 s. Bucket 1 is complete after a quarter of it, bucket 0 at its end.
  const Schedule schedule = parse_csv("0F0,1F0,1B0,0B0,1REDUCE_GRAD1,1REDUCE_GRAD0,0REDUCE_GRAD0\n");
  Durations durations = Durations::of(1, 1, 1);
  durations.reductions = {{{0.5, 1}}, {{1, 1}, {0.25, 0.25}}};
  const Timeline early = simulate(schedule, durations);
  EXPECT_EQ(span_of(early, "1REDUCE_GRAD1").start, 2.5);
  EXPECT_EQ(span_of(early, "1REDUCE_GRAD0").start, 4);
  EXPECT_EQ(span_of(early, "0REDUCE_GRAD0").start, 6);
  EXPECT_EQ(early.makespan, 6.5);
  durations.reductions[1][1].complete_after = 2;  // it begins at its Action instead
  EXPECT_EQ(span_of(simulate(schedule, durations), "1REDUCE_GRAD1").start, 6);
}

TEST(Simulate, ComputationWaitsForGatheredWeightsAndStagesHaveTheirOwnTimes) {
  Durations durations = Durations::of(1, 1, 1);
  durations.times[static_cast<size_t>(ActionKind::UNSHARD)] = 2;
  durations.stage_times = {durations.times, durations.times};
  durations.stage_times[1][static_cast<size_t>(ActionKind::F)] = 10;
  const Timeline t = simulate(parse_csv("0UNSHARD,1UNSHARD,0F0,0RESHARD,1F0\n"), durations);
  EXPECT_EQ(span_of(t, "0F0").start, 2);
  EXPECT_EQ(span_of(t, "1F0").start, 4);
  EXPECT_EQ(t.makespan, 14);
}

TEST(Simulate, BarriersOfTheVocabularyByHand) {
  using enum ActionKind;
  Durations durations = Durations::of(2, 2, 2).with(E, 1).with(EB, 1).with(S, 3).with(Z, 1).with(T, 5).with(TW, 5);
  durations.barrier_time = 0.5;
  durations.link_time = 0.25;
  const std::string begin0 = "0E0,0F0,0S0,", begin1 = "1E0,1F0,1S0,", end0 = "0B0,0EB0\n", end1 = "1B0,1EB0\n";
  // The rank that sends a broadcast has its value already. A sum is available barrier_s = 0.5 s after its last summand.
  const Timeline two = simulate(parse_csv(begin0 + "0T0," + end0 + begin1 + "1T0," + end1), durations);
  EXPECT_EQ(span_of(two, "0F0").start, 1.5);
  EXPECT_EQ(span_of(two, "1F0").start, 3.75);
  EXPECT_EQ(span_of(two, "1S0").start, 5.75);
  EXPECT_EQ(span_of(two, "0S0").start, 6.25);
  for (const char* t : {"0T0", "1T0"}) EXPECT_EQ(span_of(two, t).start, 9.75) << t;
  EXPECT_EQ(span_of(two, "1B0").start, 15.25);
  EXPECT_EQ(span_of(two, "0B0").start, 19.5);
  EXPECT_EQ(span_of(two, "0EB0").start, 23.5);
  EXPECT_EQ(span_of(two, "1EB0").start, 24);
  // With one barrier, B waits for the sum that S contributes to.
  const Timeline one = simulate(parse_csv(begin0 + "0TW0," + end0 + begin1 + "1B0,1TW0,1EB0\n"), durations);
  EXPECT_EQ(span_of(one, "1B0").start, 9.75);
  EXPECT_EQ(span_of(one, "0TW0").start, 9.75);
  EXPECT_EQ(span_of(one, "1TW0").start, 13.75);
  // With three barriers, Z is between two of them.
  const Timeline three = simulate(parse_csv(begin0 + "0Z0,0T0," + end0 + begin1 + "1Z0,1T0," + end1), durations);
  EXPECT_EQ(span_of(three, "0Z0").start, 9.75);
  EXPECT_EQ(span_of(three, "1T0").start, 11.25);
  EXPECT_EQ(span_of(three, "1B0").start, 16.75);
  for (const Timeline& timeline : {one, two, three}) EXPECT_EQ(timeline.peak_in_flight, (std::vector<int>{1, 1}));
  // Every barrier may take a time of its own; that of a microbatch with half the sequences takes half.
  Durations apart = durations;
  apart.barrier_times = {{S, 0.25}, {TW, 1}, {B, 2}, {F, 0.75}, {EB, 0.5}};
  const std::string csv = begin0 + "0TW0," + end0 + begin1 + "1B0,1TW0,1EB0\n";
  const Timeline own = simulate(parse_csv(csv), apart);
  EXPECT_EQ(span_of(own, "0F0").start, 1.75);
  EXPECT_EQ(span_of(own, "0S0").start, 6.25);   // 1F0 ends at 6
  EXPECT_EQ(span_of(own, "0TW0").start, 10.25);  // 0S0 ends at 9.25
  EXPECT_EQ(span_of(own, "1B0").start, 11.25);
  apart.microbatch_scale = {0.5};
  EXPECT_EQ(span_of(simulate(parse_csv(csv), apart), "0F0").start, 0.5 + 0.375);
  // On one rank, no barrier waits.
  const Timeline alone = simulate(parse_csv("0E0,0F0,0S0,0T0,0B0,0EB0\n"), durations);
  EXPECT_EQ(alone.bubble, 0);
}

// Messages and weight gathers without cost change neither makespan nor peaks of a schedule with barriers. Barriers
// with a cost never shorten the step.
TEST(Simulate, BarriersWithoutCostHoldUpNothingThatMessagesDoNot) {
  Random random(42);
  for (int round = 0; round < 300; ++round) {
    const int ranks = 1 + random.below(4);
    const std::vector<VocabularyKinds> cuts = every_cut();
    const auto& cut = cuts[static_cast<size_t>(random.below(static_cast<int>(cuts.size())))];
    const Schedule plain = random_cut_schedule(random, ranks, ranks + random.below(4), 1 + random.below(6), cut);
    Durations durations = Durations::of(1 + random.below(5), 1 + random.below(5), 1 + random.below(5));
    for (const KindFacts& kind : action_kinds())
      if (is_vocabulary({kind.kind})) durations = durations.with(kind.kind, random.below(4));
    const Timeline a = simulate(plain, durations);
    const Timeline b = simulate(with_weights(add_messages(plain)), durations);
    EXPECT_EQ(a.makespan, b.makespan) << to_csv(plain);
    EXPECT_EQ(a.peak_in_flight, b.peak_in_flight);
    durations.barrier_time = 1;
    EXPECT_GE(simulate(plain, durations).makespan, a.makespan);
  }
}

TEST(PeakKept, HasTheSoftmaxFromSToT) {
  // Kept after each Action: 100, 110, 210, 200, 100, 110, 100, 0.
  const char* rows = "0F0,0S0,0F1,0T0,0B0,0S1,0T1,0B1\n";
  EXPECT_EQ(peak_kept(parse_csv(rows), {{100, 0}}, 10), std::vector<double>{210});
  EXPECT_EQ(peak_kept(parse_csv(rows), {{100, 0}}), std::vector<double>{200});
  EXPECT_EQ(peak_kept(parse_csv("0F0,0S0,0F1,0S1,0B0,0TW0,0B1,0TW1\n"), {{100, 0}}, 10), std::vector<double>{220});
  EXPECT_EQ(peak_kept(parse_csv("0F0,0S0,0F1,0B0,0TW0,0S1,0B1,0TW1\n"), {{100, 0}}, 150), std::vector<double>{350});
}

TEST(Simulate, SixtyFourStagesTimes512Microbatches) {
  Durations durations = Durations::of(1, 1, 1);
  const Timeline t = simulate(add_messages(one_f_one_b(64, 512)), durations);
  EXPECT_EQ(t.makespan, 3.0 * (512 + 63));
  EXPECT_EQ(t.spans.size(), 64u * 512 * 2 + 63u * 512 * 4);
}

TEST(Simulate, DeadlockIsLogicError) {
  EXPECT_THROW(simulate(parse_csv("0B0,0F0\n1F0,1B0\n"), Durations::of(1, 1, 1)), LogicError);
  EXPECT_THROW(simulate(parse_csv("0F0,0RECV_B0\n1SEND_F0\n"), Durations::of(1, 1, 1)), LogicError);
  EXPECT_EQ(simulate(Schedule{}, Durations{}).makespan, 0);
}

}  // namespace
}  // namespace orthant::simulate_test

// The published orders, Action for Action: 4 ranks, 8 microbatches, as printed in the papers (counted from 1; i and e
// are the input layer's passes, V the output layer's where all ranks do it at once).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/vocabulary/interlaced_plan.h"
#include "parallel/vocabulary/one_f_one_b_plan.h"
#include "schedule/validate.h"
#include "tests/parallel/pipeline/measures.h"

namespace orthant {
namespace {

using Listing = std::vector<std::string>;

const Listing kTwoBarriers = {
    "i1 i2 F1 i3 F2 i4 F3 i5 F4 S1 i6 F5 T1 S2 F6 T2 S3 T3 S4 i7 B1 T4 S5 i8 F7 B2 T5 S6 e1 F8 B3 T6 S7 e2 B4 T7 S8 e3 "
    "B5 T8 e4 B6 e5 B7 e6 B8 e7 e8",
    "i1 i2 i3 F1 i4 F2 i5 F3 S1 i6 F4 T1 S2 F5 T2 S3 B1 T3 S4 i7 F6 B2 T4 S5 i8 F7 B3 T5 S6 e1 F8 B4 T6 S7 e2 B5 T7 S8 "
    "e3 B6 T8 e4 B7 e5 B8 e6 e7 e8",
    "i1 i2 i3 i4 F1 i5 F2 S1 i6 F3 T1 S2 F4 T2 S3 B1 T3 S4 i7 F5 B2 T4 S5 i8 F6 B3 T5 S6 e1 F7 B4 T6 S7 e2 F8 B5 T7 S8 "
    "e3 B6 T8 e4 B7 e5 B8 e6 e7 e8",
    "i1 i2 i3 i4 i5 F1 S1 i6 F2 T1 S2 F3 B1 T2 S3 F4 B2 T3 S4 i7 F5 B3 T4 S5 i8 F6 B4 T5 S6 e1 F7 B5 T6 S7 e2 F8 B6 T7 "
    "S8 e3 B7 T8 e4 B8 e5 e6 e7 e8",
};

const Listing kOneBarrier = {
    "i1 i2 F1 i3 F2 i4 F3 i5 F4 S1 F5 T1 S2 T2 S3 i6 B1 T3 S4 i7 F6 B2 T4 S5 i8 e1 F7 B3 T5 S6 e2 F8 B4 T6 S7 e3 B5 T7 "
    "S8 e4 B6 T8 e5 B7 e6 B8 e7 e8",
    "i1 i2 i3 F1 i4 F2 i5 F3 S1 F4 T1 S2 B1 T2 S3 i6 F5 B2 T3 S4 i7 F6 B3 T4 S5 i8 e1 F7 B4 T5 S6 e2 F8 B5 T6 S7 e3 B6 "
    "T7 S8 e4 B7 T8 e5 B8 e6 e7 e8",
    "i1 i2 i3 i4 F1 i5 F2 S1 F3 T1 S2 B1 T2 S3 i6 F4 B2 T3 S4 i7 F5 B3 T4 S5 i8 e1 F6 B4 T5 S6 e2 F7 B5 T6 S7 e3 F8 B6 "
    "T7 S8 e4 B7 T8 e5 B8 e6 e7 e8",
    "i1 i2 i3 i4 i5 F1 S1 F2 B1 T1 S2 F3 B2 T2 S3 i6 F4 B3 T3 S4 i7 F5 B4 T4 S5 i8 e1 F6 B5 T5 S6 e2 F7 B6 T6 S7 e3 F8 "
    "B7 T7 S8 e4 B8 T8 e5 e6 e7 e8",
};

// Of the interlaced pipeline the first and the last rank are published.
const std::string kInterlacedFirst = "F1 F2 F3 F4 F5 F6 V1 V2 V3 V4 B1 V5 F7 B2 V6 F8 B3 V7 B4 V8 B5 B6 B7 B8";
const std::string kInterlacedLast = "F1 F2 F3 V1 B1 V2 B2 V3 B3 F4 V4 B4 F5 V5 B5 F6 V6 B6 F7 V7 B7 F8 V8 B8";

/// A schedule in the papers' words.
Listing listed(const Schedule& schedule) {
  using enum ActionKind;
  Listing out;
  for (const auto& row : schedule.rows) {
    std::string& line = out.emplace_back();
    for (const Action& action : row) {
      line += line.empty() ? "" : " ";
      line += action.kind == E    ? "i"
              : action.kind == EB ? "e"
              : action.kind == TW ? "T"
                                  : std::string(facts(action.kind).text);
      line += std::to_string(action.microbatch + 1);
    }
  }
  return out;
}

Durations drawn() {
  using enum ActionKind;
  return Durations::of(2, 2, 2).with(S, 1).with(T, 1).with(TW, 1);
}

TEST(PublishedOrders, OneFOneBWithTheVocabularyCut) {
  const VocabularyAlgorithm &two = vocabulary_algorithm("algorithm_1"), &one = vocabulary_algorithm("algorithm_2");
  EXPECT_EQ(listed(vocabulary_one_f_one_b(4, 8, two, drawn())), kTwoBarriers);
  EXPECT_EQ(listed(vocabulary_one_f_one_b(4, 8, one, drawn())), kOneBarrier);
  // The drawings are without i and e.
  const Timeline of_two = simulate(vocabulary_one_f_one_b(4, 8, two, drawn(), false), drawn());
  const Timeline of_one = simulate(vocabulary_one_f_one_b(4, 8, one, drawn(), false), drawn());
  EXPECT_EQ(of_two.makespan_s, 84);
  EXPECT_EQ(of_one.makespan_s, 81);
  EXPECT_EQ(of_two.busy_s, std::vector<double>(4, 64));
  EXPECT_EQ(of_two.peak_live, (std::vector<int>{6, 5, 4, 3}));
  EXPECT_EQ(of_one.peak_live, (std::vector<int>{5, 4, 3, 2}));
}

TEST(PublishedOrders, Interlaced) {
  const Schedule schedule = interlaced(4, 8);
  EXPECT_EQ(problems(schedule, 8), std::vector<std::string>{});
  Schedule whole = schedule;  // V: S with T right behind it
  for (auto& row : whole.rows) {
    for (size_t i = 0; i < row.size(); ++i)
      if (row[i].kind == ActionKind::S) {
        EXPECT_EQ(row[i + 1], (Action{ActionKind::T, row[i].stage, row[i].microbatch}));
      }
    std::erase_if(row, [](const Action& action) { return action.kind == ActionKind::T; });
  }
  Listing rows = listed(whole);
  for (std::string& line : rows)
    for (char& c : line) c = c == 'S' ? 'V' : c;
  EXPECT_EQ(rows.front(), kInterlacedFirst);
  EXPECT_EQ(rows.back(), kInterlacedLast);
}

}  // namespace
}  // namespace orthant

// Schedules with vocabulary parallelism equal the orders printed in their papers, Action by Action, for 4 ranks and 8
// microbatches. The notation is that of listed.h. V stands for all passes of the output layer in the interlaced
// pipeline, where all ranks run them at once.
#include <gtest/gtest.h>

#include "tests/parallel/pipeline/listed.h"
#include "tests/parallel/vocabulary/cases.h"

namespace orthant::listings_test {
namespace {

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

// V-Half with two barriers. The paper publishes only its building block; this order follows the same rules.
const Listing kVHalf = {
    "F1a F2a F3a F4a F5a F6a F7a F1b S1 T1 B1b F2b W1b S2 T2 F3b B2b F4b S3 W2b F5b T3 S4 B1a B3b S5 W1a T4 F6b W3b "
    "F8a T5 S6 B2a B4b W2a T6 F7b B5b S7 B6b T7 B3a B7b W4b F8b S8 T8 B8b B4a W5b B5a W6b B6a W3a B7a W7b B8a W8b W4a "
    "W5a W6a W7a W8a",
    "F1a F2a F3a F4a F5a F1b F6a S1 T1 F2b B1b F3b S2 T2 W1b F4b B2b S3 F5b W2b T3 B1a S4 W1a F7a S5 F6b T4 B3b W3b "
    "B2a T5 S6 F8a W2a F7b T6 B4b W4b S7 B3a T7 B5b B6b F8b B7b S8 T8 B4a B8b B5a W3a B6a W5b B7a W6b B8a W7b W4a W8b "
    "W5a W6a W7a W8a",
    "F1a F2a F3a F1b F4a F2b S1 T1 F5a F3b B1b S2 T2 F4b W1b F5b S3 F6a B2b B1a T3 W2b S4 W1a F6b S5 F7a T4 B2a B3b T5 "
    "S6 W2a F7b W3b T6 F8a B3a S7 B4b T7 W3a F8b B5b B4a S8 T8 B6b B5a B7b B6a B8b B7a W4b B8a W5b W4a W6b W5a W7b W6a "
    "W8b W7a W8a",
    "F1a F1b F2a F2b F3a S1 T1 F3b F4a F4b S2 T2 F5a F5b B1b S3 W1b B1a W1a T3 F6a S4 F6b B2b S5 W2b T4 B2a F7a W2a T5 "
    "S6 F7b B3b B3a T6 W3b F8a S7 W3a T7 F8b B4b B4a B5b S8 T8 B5a B6b B6a B7b B7a B8b B8a W4b W4a W5b W5a W6b W6a W7b "
    "W7a W8b W8a",
};

// Only the first and the last rank of the interlaced pipeline are published.
const std::string kInterlacedFirst = "F1 F2 F3 F4 F5 F6 V1 V2 V3 V4 B1 V5 F7 B2 V6 F8 B3 V7 B4 V8 B5 B6 B7 B8";
const std::string kInterlacedLast = "F1 F2 F3 V1 B1 V2 B2 V3 B3 F4 V4 B4 F5 V5 B5 F6 V6 B6 F7 V7 B7 F8 V8 B8";

Durations drawn() {
  using enum ActionKind;
  return Durations::of(2, 2, 2).with(S, 1).with(T, 1).with(TW, 1);
}

TEST(PublishedOrders, VocabularyParallel1F1B) {
  const VocabularyAlgorithm &two = vocabulary_algorithm("algorithm_1"), &one = vocabulary_algorithm("algorithm_2");
  EXPECT_EQ(listed(vocabulary_one_f_one_b(4, 8, two, drawn())), kTwoBarriers);
  EXPECT_EQ(listed(vocabulary_one_f_one_b(4, 8, one, drawn())), kOneBarrier);
  // The published drawings omit i and e.
  const Timeline of_two = simulate(vocabulary_one_f_one_b(4, 8, two, drawn(), false), drawn());
  const Timeline of_one = simulate(vocabulary_one_f_one_b(4, 8, one, drawn(), false), drawn());
  EXPECT_EQ(of_two.makespan, 84);
  EXPECT_EQ(of_one.makespan, 81);
  EXPECT_EQ(of_two.busy, std::vector<double>(4, 64));
  EXPECT_EQ(of_two.peak_in_flight, (std::vector<int>{6, 5, 4, 3}));
  EXPECT_EQ(of_one.peak_in_flight, (std::vector<int>{5, 4, 3, 2}));
}

TEST(PublishedOrders, VHalfWithTwoBarriers) {
  const Durations equal = with_output(Durations::of(1, 1, 1), 1);
  EXPECT_EQ(listed(cut("v_half", vocabulary_algorithm("algorithm_1"), 4, 8, equal, -1, false)), kVHalf);
}

TEST(PublishedOrders, Interlaced) {
  const Schedule schedule = interlaced(4, 8);
  EXPECT_EQ(problems(schedule, 8), std::vector<std::string>{});
  Schedule whole = schedule;  // T must follow S at once; both become V
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
}  // namespace orthant::listings_test

// Text forms of Actions and Schedules: printed text is parsed back, and damaged text is refused with its position.
#include "schedule/schedule.h"

#include <gtest/gtest.h>

#include "base/errors.h"
#include "parallel/pipeline/stages_plan.h"
#include "schedule/validate.h"
#include "tests/schedule/generators.h"

namespace orthant::schedule_test {
namespace {

TEST(Action, PrintsAsPyTorchDoesAndReadsBack) {
  using enum ActionKind;
  EXPECT_EQ(to_string(Action{F, 2, 5}), "2F5");
  EXPECT_EQ(to_string(Action{SEND_F, 3, 1}), "3SEND_F1");
  EXPECT_EQ(to_string(Action{S, 0, 3}), "0S3");
  EXPECT_EQ(to_string(Action{TW, 1, 3}), "1TW3");
  EXPECT_EQ(to_string(Action{E, 0, 3}), "0E3");
  EXPECT_EQ(to_string(Action{EB, 0, 3}), "0EB3");
  EXPECT_EQ(to_string(Action{UNSHARD, 0}), "0UNSHARD");
  EXPECT_EQ(to_string(Action{REDUCE, 0, 3}), "0REDUCE_GRAD3");
  EXPECT_EQ(to_string(Action{REDUCE, 0, -1}), "0REDUCE_GRAD");
  for (const KindFacts& kind : action_kinds())
    for (int number : {-1, 0, 7, 1234}) {
      if ((kind.counts == NumberMeaning::nothing) != (number < 0) && kind.counts != NumberMeaning::bucket) continue;
      const Action action{kind.kind, 12, number};
      EXPECT_EQ(parse_action(to_string(action)), action) << to_string(action);
    }
  EXPECT_EQ(action_kinds().size(), kActionKinds);
}

TEST(Action, RefusesInvalidText) {
  for (const char* text : {"",
                           "F1",
                           "2",
                           "2X5",
                           "2F",
                           "2F5 ",
                           "2F5x",
                           "2f5",
                           "-1F2",
                           "2F-1",
                           "0UNSHARD3",
                           "2F99999999999",
                           "99999999999F1",
                           "2147483647F0",
                           "1073741824F0",
                           "0F1073741824",
                           "0SEND1",
                           "0REDUCE3",
                           " 2F5",
                           "0E",
                           "0SB1",
                           "0EB",
                           "0WT1"})
    EXPECT_THROW(parse_action(text), DataError) << text;
}

TEST(Action, ErrorEscapesAndShortensTheCell) {
  const std::string zeros(1'000'000, '\0');
  try {
    parse_action(zeros);
    ADD_FAILURE();
  } catch (const DataError& error) {
    const std::string said = error.what();
    EXPECT_EQ(said.find("'\\x00\\x00"), 0u) << said;
    EXPECT_NE(said.find("...' is not an Action such as 2F5"), std::string::npos) << said;
    EXPECT_LT(said.size(), 300u);
  }
  EXPECT_EQ(to_csv(parse_csv("\xEF\xBB\xBF"
                             "0F0,0B0\n")),
            "0F0,0B0\n");  // some editors start a file with a byte order mark
}

TEST(Schedule, ReducesAfterTheRowTheLastBucketFirst) {
  EXPECT_EQ(to_csv(add_reductions(one_f_one_b(1, 2), {3})),
            "0F0,0B0,0F1,0B1,0REDUCE_GRAD2,0REDUCE_GRAD1,0REDUCE_GRAD0\n");
  EXPECT_EQ(to_csv(add_reductions(one_f_one_b(1, 1), {0})), "0F0,0B0\n");
  EXPECT_EQ(to_csv(add_reductions(v_shaped_stages(1), {1, 2})), "1REDUCE_GRAD1,1REDUCE_GRAD0,0REDUCE_GRAD0\n");
  EXPECT_NO_THROW(validate(add_reductions(one_f_one_b(1, 5), {4}), 5, {4}));
  EXPECT_THROW(validate(add_reductions(one_f_one_b(1, 5), {4}), 5, {5}), LogicError);
  EXPECT_THROW(add_reductions(one_f_one_b(2, 5), {4}), LogicError);
}

TEST(Schedule, CsvReadsBack) {
  Random random(31);
  for (int round = 0; round < 300; ++round) {
    const int ranks = 1 + random.below(4);
    Schedule schedule = random_schedule(random, ranks, ranks + random.below(4), 1 + random.below(5));
    const std::vector<VocabularyKinds> cuts = every_cut();
    if (const size_t cut = static_cast<size_t>(random.below(2 * static_cast<int>(cuts.size()))); cut < cuts.size())
      schedule = random_cut_schedule(random, ranks, ranks + random.below(4), 1 + random.below(5), cuts[cut]);
    if (random.below(2) == 0) schedule = add_messages(schedule);
    if (random.below(2) == 0) schedule = with_weights(schedule);
    EXPECT_EQ(parse_csv(to_csv(schedule)), schedule);
  }
}

TEST(Schedule, ReadsWhatPyTorchWrites) {
  const Schedule v = parse_csv("0F0,,3F0,3B0,\r\n,1F0,2F0,(1F1;2B0)OVERLAP_F_B,1I0,1W0,1REDUCE_GRAD\r\n");
  ASSERT_EQ(v.rows.size(), 2u);
  EXPECT_EQ(v.stage_owner, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(to_csv(v), "0F0,3F0,3B0\n1F0,2F0,1F1,2B0,1I0,1W0,1REDUCE_GRAD\n");
  // A line without Actions is a rank without work. The newline at the end of the file starts no further line.
  EXPECT_EQ(parse_csv("0F0\n\n1F0\n").rows.size(), 3u);
  EXPECT_TRUE(parse_csv("").rows.empty());
}

TEST(Schedule, DamagedCsvIsRefusedWithLineAndCell) {
  const auto message = [](const char* text) -> std::string {
    try {
      parse_csv(text);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message("0F0,0B0\n1F0,,1X0\n").find("line 2, cell 3"), std::string::npos);
  EXPECT_NE(message("0F0,0B0\n1F0,,1X0\n").find("'1X0'"), std::string::npos);
  EXPECT_NE(message("(0F0;1B0)\n").find("line 1, cell 1"), std::string::npos);
  EXPECT_NE(message("0F0,999999999F0\n").find("schedule line 1, cell 2: stages x microbatches = 1000000000 x"),
            std::string::npos);
  EXPECT_NE(message("0F0\n,,1F0,1F999999999\n").find("schedule line 2, cell 4: stages x microbatches = 2 x"),
            std::string::npos);
  EXPECT_EQ(message("0F16383,0B16383\n"), "");
  EXPECT_EQ(message("0F16384,0B16384\n"),
            "schedule line 1, cell 1: stages x microbatches = 1 x 16385 must be at most 16384 in a file of 2 Actions, "
            "because each stage computes each microbatch; correct this number, or add the missing Actions");
}

TEST(Schedule, GridShowsIdleTime) {
  EXPECT_EQ(grid(one_f_one_b(2, 2)),
            "rank 0 | 0F0 0F1 .   0B0 .   0B1\n"
            "rank 1 | .   1F0 1B0 1F1 1B1\n");
  EXPECT_EQ(grid(parse_csv("0B0,0F0\n1F0,1B0\n")), "rank 0 | 0B0 0F0\nrank 1 | 1F0 1B0\n");
  EXPECT_EQ(grid(Schedule{}), "");
  EXPECT_EQ(grid(parse_csv("0E0,0F0,0S0,0TW0,0B0,0EB0\n1E0,1F0,1S0,1B0,1TW0,1EB0\n")),
            "rank 0 | 0E0  0F0  .    0S0  0TW0 0B0  0EB0\n"
            "rank 1 | 1E0  .    1F0  1S0  1B0  1TW0 1EB0\n");
}

}  // namespace
}  // namespace orthant::schedule_test

// A user's own schedule in a CSV file. Generated schedules read back equal, with and without messages, and PyTorch's
// files load. A wrong schedule is refused with the line and the cell of the error.
#include "parallel/pipeline/csv_plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "base/errors.h"
#include "base/text.h"
#include "schedule/passes.h"
#include "schedule/validate.h"
#include "tests/parallel/pipeline/every_schedule.h"

namespace orthant::csv_test {
namespace {

TEST(OwnSchedule, ReadsBackWithAndWithoutMessages) {
  for (int p : {1, 2, 4})
    for (int m : {1, 3, 8})
      for (const auto& [name, schedule] : every_schedule(p, m)) {
        const Schedule sent = add_messages(schedule);
        EXPECT_EQ(schedule_from_csv(to_csv(schedule), p, m), sent) << name;
        EXPECT_EQ(schedule_from_csv(to_csv(sent), p, m), sent) << name;
      }
}

std::string refusal(const std::string& csv, int ranks, int microbatches) {
  try {
    schedule_from_csv(csv, ranks, microbatches);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::string golden(const std::string& name) {
  std::ifstream file(ORTHANT_SOURCE_DIR "/tests/golden/pipelining/" + name + ".csv");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(OwnSchedule, LoadsSchedulesOfPyTorch) {
  // The files have PyTorch's sends and receives; tests/golden/pipelining/make.py wrote them.
  EXPECT_EQ(schedule_from_csv(golden("interleaved_1f1b"), 4, 8), add_messages(interleaved_1f1b(4, 2, 8)));
  EXPECT_EQ(schedule_from_csv(golden("zb_v"), 4, 8), add_messages(zb_v(4, 8)));
  EXPECT_EQ(schedule_from_csv(golden("dual_pipe_v"), 4, 8), add_messages(dual_pipe_v(4, 8)));
  const Schedule other = schedule_from_csv(golden("interleaved_zero_bubble"), 4, 8);
  // The bubble is that of ZB-H1, (p-1)(f+b-w), in the durations of stages half as long.
  EXPECT_EQ(max_rank_bubble(simulate(other, Durations::of(1, 1, 1))), 3);
}

TEST(OwnSchedule, NamesTheCell) {
  const std::string head = "the schedule cannot be carried out:\n  ";
  // Cells are counted as in the file: idle cells count, and a cell with two Actions counts once.
  EXPECT_EQ(refusal("0F0,,,0SEND_F0,0RECV_B0,0B0\n,1F0,1B0,1SEND_B0\n", 2, 1),
            head + "1RECV_F0 is missing before 1F0 (line 2, cell 2), for 0SEND_F0 (line 1, cell 4)");
  EXPECT_EQ(refusal("0F0,(0F1;0B0)OVERLAP_F_B,,0B0,0B1\n", 1, 2),
            head + "0B0 (line 1, cell 4) occurs twice, first as 0B0 (line 1, cell 2)");
  EXPECT_EQ(refusal("0F0,0B0\n1F0,1B0\n1F1\n", 3, 2), head + "1F1 (line 3, cell 1): stage 1 is on line 2");
  EXPECT_EQ(refusal("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n", 2, 2),
            head + "deadlock: 0B0 (line 1, cell 2) waits for 1B0 (line 2, cell 4)\n  "
                   "deadlock: 1F1 (line 2, cell 2) waits for 0F1 (line 1, cell 3)");
  EXPECT_EQ(refusal("0F0,0B0\n2F0,2B0\n", 2, 1),
            head + "stage 1 belongs to no rank, but 2F0 (line 2, cell 1) is on a later stage");
  EXPECT_EQ(refusal("0F0,0F1,0B1\n", 1, 2), head + "0B0 is missing after 0F0 (line 1, cell 1)");
  EXPECT_EQ(refusal("0F0,0F2,0B2,0B0\n", 1, 3), head + "0F1 is missing (line 1)\n  0B1 is missing (line 1)");
  EXPECT_EQ(refusal("0B0,0F0\n", 1, 1), head + "0B0 (line 1, cell 1) comes before 0F0 (line 1, cell 2)");
}

// If a receive is missing, the message names it, the Action that needs it, and its send.
TEST(OwnSchedule, EveryMissingReceiveIsNamedWithBothItsSides) {
  const Schedule whole = add_messages(v_half(3, 4));
  for (size_t rank = 0; rank < whole.rows.size(); ++rank)
    for (size_t index = 0; index < whole.rows[rank].size(); ++index) {
      const Action action = whole.rows[rank][index];
      if (facts(action.kind).stream != Stream::receive) continue;
      Schedule damaged = whole;
      damaged.rows[rank].erase(damaged.rows[rank].begin() + static_cast<int>(index));
      const std::string said = refusal(to_csv(damaged), 3, 4);
      EXPECT_NE(said.find(to_string(action) + " is missing before "), std::string::npos) << said;
      EXPECT_NE(said.find(", for " + to_string(matching_message(action)) + " (line "), std::string::npos) << said;
      EXPECT_NE(said.find(fmt::format("(line {}, cell ", rank + 1)), std::string::npos) << said;
    }
}

// UNSHARD, RESHARD, REDUCE_GRAD, FINALIZE and STEP in a file are ignored, because the plan places its own.
TEST(OwnSchedule, IgnoresActionsThatThePlanAdds) {
  const Schedule alone = schedule_from_csv("0F0,0F1,0B0,0B1\n", 1, 2);
  EXPECT_EQ(schedule_from_csv("0UNSHARD,0F0,,0F1,0B0,0B1,0RESHARD,0REDUCE_GRAD1\n", 1, 2), alone);
  EXPECT_EQ(schedule_from_csv("0FINALIZE,0F0,0F1,0B0,0B1,0REDUCE_GRAD0,0STEP\n", 1, 2), alone);
  // Ignored cells still count in the cell numbers of messages.
  const std::string said = refusal("0UNSHARD,0F0,,0B0,0B0\n", 1, 1);
  EXPECT_NE(said.find("0B0 (line 1, cell 5) occurs twice, first as 0B0 (line 1, cell 4)"), std::string::npos) << said;
}

TEST(OwnSchedule, MustMatchTheRun) {
  EXPECT_EQ(refusal("0F0,0B0\n", 2, 1),
            "the schedule must have one line for each of 2 pipeline ranks, but it has 1; add or remove lines, or set "
            "parallelism.pipeline_parallel_degree to 1");
  EXPECT_EQ(refusal(to_csv(one_f_one_b(2, 8)), 2, 4), "the schedule is for 8 microbatches (0F7 in line 1, cell 14)");
  EXPECT_EQ(refusal("0F0,0F11,0B0,0B1\n", 1, 2), "the schedule is for 12 microbatches (0F11 in line 1, cell 2)");
  EXPECT_THROW(schedule_from_csv("0F0,0X0\n", 1, 1), DataError);
  EXPECT_EQ(refusal("0F0,0S0,0T0,0B0\n", 1, 1),
            "line 1, cell 2: 0S0 is a vocabulary pass, which a schedule file must not have; remove S, Z, T, TW, E and "
            "EB, and set parallelism.vocabulary_parallel");
  for (const char* empty : {",,\n,,\n", " \n \n", "0UNSHARD\n1UNSHARD\n", "0STEP\n1REDUCE_GRAD\n"}) {
    EXPECT_EQ(refusal(empty, 2, 1), "the schedule has no pass of any microbatch: every pipeline rank needs a stage");
  }
  EXPECT_EQ(refusal("0F0,0B0\n,\n", 2, 1),
            "line 2 has no Action; every pipeline rank needs a stage; give it passes of a stage, or lower "
            "parallelism.pipeline_parallel_degree");
  Schedule backwards = gpipe(1, 20);
  backwards.rows[0].erase(backwards.rows[0].begin(), backwards.rows[0].begin() + 20);
  const std::string many = refusal(to_csv(backwards), 1, 20);
  EXPECT_NE(many.find("and 15 more"), std::string::npos) << many;
  EXPECT_EQ(split(many, '\n').size(), 7u) << many;
}

}  // namespace
}  // namespace orthant::csv_test

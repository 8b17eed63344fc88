// validate() against a machine that carries out the rows: what it accepts ends with every result made once; whatever
// hangs, miscounts or mixes up messages is refused, and named.
#include "schedule/validate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "tests/schedule/generators.h"
#include "tests/schedule/machine.h"
#include "tests/schedule/mutations.h"

namespace orthant {
namespace {

struct Case {
  Schedule schedule;
  int microbatches;
  std::vector<int> buckets;
};

Case random_case(Random& random) {
  const int ranks = 1 + random.below(4);
  const int stages = ranks + random.below(3);
  const int microbatches = 1 + random.below(4);
  Case out{random_schedule(random, ranks, stages, microbatches), microbatches, {}};
  if (random.below(2) == 0) out.schedule = add_messages(out.schedule);
  if (random.below(3) == 0) out.schedule = with_weights(out.schedule);
  for (int stage = 0; stage < stages; ++stage) out.buckets.push_back(1 + random.below(3));
  out.schedule = with_reductions(out.schedule, out.buckets);
  return out;
}

TEST(Validate, AcceptsWhatGeneratorsMake) {
  Random random(61);
  for (int round = 0; round < 500; ++round) {
    const Case c = random_case(random);
    EXPECT_EQ(problems(c.schedule, c.microbatches, c.buckets), std::vector<std::string>{}) << to_csv(c.schedule);
    EXPECT_TRUE(Machine(c.schedule, c.microbatches, c.buckets).works()) << to_csv(c.schedule);
  }
  for (int p : {1, 2, 5})
    for (int m : {1, 3, 9})
      for (const Schedule& schedule : {gpipe(p, m), one_f_one_b(p, m), zb_h1(p, m), add_messages(zb_h1(p, m))})
        EXPECT_NO_THROW(validate(schedule, m));
}

TEST(Validate, AcceptsAMutationExactlyIfItWorks) {
  Random random(62);
  std::map<bool, int> counts;
  for (int round = 0; round < 6000; ++round) {
    const Case c = random_case(random);
    Mutation mutation = mutated(random, c.schedule);
    if (random.below(4) == 0) mutation = mutated(random, mutation.schedule);
    // The machine takes buckets by number only; a REDUCE for the whole stage is another way to say it.
    bool whole_stage = false;
    for (const auto& row : mutation.schedule.rows)
      for (const Action& action : row) {
        const bool counts_nothing = facts(action.kind).counts == ThirdField::nothing;
        whole_stage |= action.kind == ActionKind::REDUCE && action.microbatch < 0;
        whole_stage |= counts_nothing && action.microbatch >= 0;
      }
    if (whole_stage) continue;
    const bool works = Machine(mutation.schedule, c.microbatches, c.buckets).works();
    const std::vector<std::string> found = problems(mutation.schedule, c.microbatches, c.buckets);
    ASSERT_EQ(found.empty(), works) << mutation.what << "\n"
                                    << to_csv(mutation.schedule) << (found.empty() ? "" : found[0]);
    ++counts[works];
  }
  EXPECT_GT(counts[true], 300);
  EXPECT_GT(counts[false], 3000);
}

TEST(Validate, NamesWhatWasDroppedOrDoubled) {
  Random random(63);
  for (int round = 0; round < 1000; ++round) {
    const Case c = random_case(random);
    Schedule schedule = c.schedule;
    auto& row = schedule.rows[static_cast<size_t>(random.below(static_cast<int>(schedule.rows.size())))];
    if (row.empty()) continue;
    const int at = random.below(static_cast<int>(row.size()));
    const Action action = row[static_cast<size_t>(at)];
    if (facts(action.kind).counts == ThirdField::nothing) continue;
    if (round % 2 == 0)
      row.erase(row.begin() + at);
    else
      row.insert(row.begin() + at, action);
    const std::vector<std::string> found = problems(schedule, c.microbatches, c.buckets);
    const bool named = std::any_of(found.begin(), found.end(), [&](const std::string& problem) {
      return problem.find(to_string(action)) != std::string::npos;
    });
    ASSERT_TRUE(named) << to_string(action) << "\n" << to_csv(schedule);
  }
}

std::string first_problem(const char* csv, int microbatches) {
  const std::vector<std::string> found = problems(parse_csv(csv), microbatches);
  return found.empty() ? "" : found[0];
}

TEST(Validate, SaysWhatIsWrong) {
  EXPECT_EQ(first_problem("0F0,0B0\n", 1), "");
  EXPECT_EQ(first_problem("0F0\n", 1), "0B0 is missing after 0F0 (rank 0, Action 0)");
  EXPECT_EQ(first_problem("0B0,0F0\n", 1), "0B0 (rank 0, Action 0) comes before 0F0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0,0B0\n", 1), "0B0 (rank 0, Action 2) stands twice, first as 0B0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0\n0F1,0B1\n", 2), "0F1 (rank 1, Action 0): stage 0 stands on rank 0");
  EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n", 1), "0F1 (rank 0, Action 2): there are microbatches 0 to 0");
  EXPECT_EQ(first_problem("0F0,0I0\n", 1), "0W0 is missing beside 0I0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0,0W0\n", 1), "0B0 (rank 0, Action 1) beside 0W0 (rank 0, Action 2)");
  EXPECT_EQ(first_problem("0F0,0B0\n", 2), "0F1 is missing (rank 0)");
  EXPECT_EQ(first_problem("0F0,0SEND_F0,0B0\n1F0,1B0\n", 1),
            "1RECV_F0 is missing before 1F0 (rank 1, Action 0), for 0SEND_F0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1),
            "0RECV_B0 is missing before 0B0 (rank 0, Action 2), for 1SEND_B0 (rank 1, Action 3)");
  EXPECT_EQ(first_problem("0F0,0UNSHARD,0B0\n", 1), "0F0 (rank 0, Action 0): the weights are not gathered there");
  EXPECT_EQ(first_problem("0F0,0REDUCE_GRAD0,0B0\n", 1),
            "0REDUCE_GRAD0 (rank 0, Action 1) comes before 0B0 (rank 0, Action 2)");
  EXPECT_EQ(first_problem("0F0,0B0,0REDUCE_GRAD1\n", 1), "0REDUCE_GRAD0 is missing");
  EXPECT_EQ(first_problem("0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n", 1), "1REDUCE_GRAD is missing");
  EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n", 2),
            "deadlock: 0B0 (rank 0, Action 1) waits for 1B0 (rank 1, Action 3)");
  // A receive before the send that its message comes of: each rank waits for the other's second.
  EXPECT_EQ(first_problem("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1),
            "deadlock: 0RECV_B0 (rank 0, Action 1) waits for 1SEND_B0 (rank 1, Action 3)");
  EXPECT_EQ(first_problem("2F0,2B0\n", 1), "stage 0 belongs to no rank");
  EXPECT_NE(first_problem("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                          "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n", 2).find("takes the place of"),
            std::string::npos);
  EXPECT_THROW(validate(parse_csv("0F0\n"), 1), LogicError);
}

}  // namespace
}  // namespace orthant

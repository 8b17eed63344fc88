// validate() against a machine that carries out the rows (machine.h). It accepts a schedule exactly if the machine
// completes it. It refuses all others (deadlocks, wrong counts, mixed-up messages) and names the Action.
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

namespace orthant::validate_test {
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
  if (random.below(2) == 0) {
    const std::vector<VocabularyKinds> cuts = every_cut();
    const auto& cut = cuts[static_cast<size_t>(random.below(static_cast<int>(cuts.size())))];
    out.schedule = random_cut_schedule(random, ranks, stages, microbatches, cut);
  }
  if (random.below(2) == 0) out.schedule = add_messages(out.schedule);
  if (random.below(3) == 0) out.schedule = with_weights(out.schedule);
  for (int stage = 0; stage < stages; ++stage) out.buckets.push_back(1 + random.below(3));
  out.schedule = add_reductions(out.schedule, out.buckets);
  const bool messages = std::ranges::any_of(out.schedule.rows, [](const auto& row) {
    return std::ranges::any_of(row, is_message);
  });
  if (messages && random.below(2) == 0) out.schedule = with_post_validation(out.schedule);
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

// A huge bucket or stage number gives at most 100 problems, not one per missing number.
TEST(Validate, NumberOfProblemsIsBounded) {
  const int large = (1 << 30) - 1;
  Schedule bucket = add_reductions(one_f_one_b(1, 1), {1});
  bucket.rows[0].back().microbatch = large;
  EXPECT_EQ(problems(bucket, 1).size(), 100u);
  EXPECT_EQ(problems(bucket, 1, {large}).size(), 100u);
  const Schedule stage = parse_csv("16383F0,16383B0\n");
  EXPECT_EQ(problems(stage, 1).size(), 1u);  // only the first missing stage is reported
  EXPECT_THROW(parse_csv(fmt::format("{}F0,{}B0\n", large, large)), DataError);
}

// validate() accepts a mutated schedule exactly if the machine completes it.
TEST(Validate, AcceptsAMutationExactlyIfItWorks) {
  Random random(62);
  std::map<bool, int> counts;
  for (int round = 0; round < 6000; ++round) {
    const Case c = random_case(random);
    Mutant mutation = mutated(random, c.schedule);
    if (random.below(4) == 0) mutation = mutated(random, mutation.schedule);
    // The machine accepts buckets by number only; a REDUCE without a number is another spelling for the whole stage.
    bool whole_stage = false;
    for (const auto& row : mutation.schedule.rows)
      for (const Action& action : row) {
        const bool counts_nothing = facts(action.kind).counts == NumberMeaning::nothing;
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
    if (facts(action.kind).counts == NumberMeaning::nothing) continue;
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

TEST(Validate, NamesTheVocabularyActionThatWasDroppedDoubledOrSwapped) {
  Random random(64);
  int refused[3] = {};
  for (int round = 0; round < 3000; ++round) {
    const int ranks = 1 + random.below(4), microbatches = 1 + random.below(4);
    const std::vector<VocabularyKinds> cuts = every_cut();
    const auto& cut = cuts[static_cast<size_t>(random.below(static_cast<int>(cuts.size())))];
    Schedule schedule = random_cut_schedule(random, ranks, ranks + random.below(3), microbatches, cut);
    if (random.below(2) == 0) schedule = add_messages(schedule);
    auto& row = schedule.rows[static_cast<size_t>(random.below(ranks))];
    const int n = static_cast<int>(row.size()), other = random.below(n);
    int at = random.below(n);
    while (!is_vocabulary(row[static_cast<size_t>(at)])) at = (at + 1) % n;
    const Action action = row[static_cast<size_t>(at)], second = row[static_cast<size_t>(other)];
    if (round % 3 == 0) row.erase(row.begin() + at);
    if (round % 3 == 1) row.insert(row.begin() + other, action);
    if (round % 3 == 2) std::swap(row[static_cast<size_t>(at)], row[static_cast<size_t>(other)]);
    const std::vector<int> none(schedule.stage_owner.size(), 0);
    if (round % 3 == 2 && Machine(schedule, microbatches, none).works()) continue;
    const std::vector<std::string> found = problems(schedule, microbatches);
    const bool named = std::any_of(found.begin(), found.end(), [&](const std::string& problem) {
      return problem.find(to_string(action)) != std::string::npos ||
             (round % 3 == 2 && problem.find(to_string(second)) != std::string::npos);
    });
    ASSERT_TRUE(named) << to_string(action) << "\n" << to_csv(schedule) << (found.empty() ? "" : found[0]);
    ++refused[round % 3];
  }
  for (const int count : refused) EXPECT_GT(count, 600);
}

std::string first_problem(const char* csv, int microbatches) {
  const std::vector<std::string> found = problems(parse_csv(csv), microbatches);
  return found.empty() ? "" : found[0];
}

// The exact text of each kind of problem.
TEST(Validate, SaysWhatIsWrong) {
  EXPECT_EQ(first_problem("0F0,0B0\n", 1), "");
  EXPECT_EQ(first_problem("0F0\n", 1), "0B0 is missing after 0F0 (rank 0, Action 0)");
  EXPECT_EQ(first_problem("0B0,0F0\n", 1), "0B0 (rank 0, Action 0) comes before 0F0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0,0B0\n", 1), "0B0 (rank 0, Action 2) occurs twice, first as 0B0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0B0\n0F1,0B1\n", 2), "0F1 (rank 1, Action 0): stage 0 is on rank 0");
  EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n", 1), "0F1 (rank 0, Action 2): microbatches run from 0 to 0");
  EXPECT_EQ(first_problem("0F0,0I0\n", 1), "0W0 is missing, but 0I0 (rank 0, Action 1) requires it");
  EXPECT_EQ(first_problem("0F0,0B0,0W0\n", 1), "0B0 (rank 0, Action 1) and 0W0 (rank 0, Action 2) exclude each other");
  EXPECT_EQ(first_problem("0F0,0B0\n", 2), "0F1 is missing (rank 0)");
  EXPECT_EQ(first_problem("0F0,0SEND_F0,0B0\n1F0,1B0\n", 1),
            "1RECV_F0 is missing before 1F0 (rank 1, Action 0), for 0SEND_F0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1),
            "0RECV_B0 is missing before 0B0 (rank 0, Action 2), for 1SEND_B0 (rank 1, Action 3)");
  EXPECT_EQ(first_problem("0F0,0UNSHARD,0B0\n", 1), "0F0 (rank 0, Action 0): the weights are not gathered here");
  EXPECT_EQ(first_problem("0F0,0REDUCE_GRAD0,0B0\n", 1),
            "0REDUCE_GRAD0 (rank 0, Action 1) comes before 0B0 (rank 0, Action 2)");
  EXPECT_EQ(first_problem("0F0,0B0,0REDUCE_GRAD1\n", 1), "0REDUCE_GRAD0 is missing");
  EXPECT_EQ(first_problem("0F0,0B0,0REDUCE_GRAD\n1F0,1B0\n", 1), "1REDUCE_GRAD is missing");
  EXPECT_EQ(first_problem("0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0\n", 2),
            "deadlock: 0B0 (rank 0, Action 1) waits for 1B0 (rank 1, Action 3)");
  // Each rank posts a receive before the send on which the other rank's reply depends. So both wait forever.
  EXPECT_EQ(first_problem("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", 1),
            "deadlock: 0RECV_B0 (rank 0, Action 1) waits for 1SEND_B0 (rank 1, Action 3)");
  EXPECT_EQ(first_problem("2F0,2B0\n", 1),
            "stage 0 belongs to no rank, but 2F0 (rank 0, Action 0) is on a later stage");
  // Actions of the vocabulary layers.
  EXPECT_EQ(first_problem("0E0,0F0,0S0,0T0,0B0,0EB0\n", 1), "");
  EXPECT_EQ(first_problem("0F0,0S0,0B0,0TW0\n", 1), "");
  EXPECT_EQ(first_problem("0F0,0S0,0B0,0T0\n", 1), "deadlock: 0B0 (rank 0, Action 2) waits for 0T0 (rank 0, Action 3)");
  EXPECT_EQ(first_problem("0F0,0S0,0T0,0B0\n1F0,1S0,1B0\n", 1), "1T0 is missing after 1S0 (rank 1, Action 1)");
  EXPECT_EQ(first_problem("0F0,0S0,0T0,0B0\n1F0,1T0,1S0,1B0\n", 1),
            "1T0 (rank 1, Action 1) comes before 1S0 (rank 1, Action 2)");
  EXPECT_EQ(first_problem("0F0,0S0,0TW0,0B0\n1F0,1S0,1T0,1B0\n", 1),
            "0TW0 (rank 0, Action 2): it must be T, as on other ranks");
  EXPECT_EQ(first_problem("0F0,0E0,0B0,0EB0\n", 1),
            "deadlock: 0F0 (rank 0, Action 0) waits for 0E0 (rank 0, Action 1)");
  EXPECT_EQ(first_problem("0F0,0F1,0S1,0S0,0T0,0T1,0B0,0B1\n", 2),
            "0S0 (rank 0, Action 3) comes after 0S1 (rank 0, Action 2): microbatches must increase here");
  EXPECT_EQ(first_problem("0F1,0F0,0S0,0S1,0T0,0T1,0B0,0B1\n", 2),
            "0F0 (rank 0, Action 1) comes after 0F1 (rank 0, Action 0): microbatches must increase here");
  EXPECT_EQ(first_problem("0F0,1F0,1S0,1T0,1B0,0B0\n", 1),
            "1S0 (rank 0, Action 2): the stage of its vocabulary shard must be 0");
  EXPECT_EQ(
      problems(
          {.rows = {{{ActionKind::F, 0, 0}, {ActionKind::S, 0, 0}, {ActionKind::T, 0, 0}, {ActionKind::B, 0, 0}}, {}},
           .stage_owner = {0}},
          1),
      std::vector<std::string>{"rank 1 has no stage and therefore no shard of the vocabulary"});
  EXPECT_EQ(first_problem("0F0,0S0,0B0,0REDUCE_GRAD0,0TW0\n", 1),
            "0REDUCE_GRAD0 (rank 0, Action 3) comes before 0TW0 (rank 0, Action 4)");
  // A broadcast completes once all its readers have reached it: rank 1 waits at 1S1 until rank 0 gets there, after 0B0.
  EXPECT_EQ(problems(parse_csv("0F0,0F1,0S0,0TW0,0B0,0S1,0TW1,0B1\n1F0,1F1,1S0,1TW0,1S1,1B0,1TW1,1B1\n"
                               "2F0,2F1,2S0,2TW0,2B0,2S1,2TW1,2B1\n"), 2),
            (std::vector<std::string>{"deadlock: 0B0 (rank 0, Action 4) waits for 1B0 (rank 1, Action 5)",
                                      "deadlock: 1S1 (rank 1, Action 4) waits for 0S1 (rank 0, Action 5)",
                                      "deadlock: 2TW1 (rank 2, Action 6) waits for 0S1 (rank 0, Action 5)"}));
  // The same with the rows of sender and receiver exchanged.
  EXPECT_EQ(problems(parse_csv("2F0,2F1,2S0,2TW0,2B0,2S1,2TW1,2B1\n1F0,1F1,1S0,1TW0,1S1,1B0,1TW1,1B1\n"
                               "0F0,0F1,0S0,0TW0,0B0,0S1,0TW1,0B1\n"), 2).at(1),
            "deadlock: 1S1 (rank 1, Action 4) waits for 0S1 (rank 2, Action 5)");
  EXPECT_NE(first_problem("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                          "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n",
                          2)
                .find("must come after"),
            std::string::npos);
  EXPECT_THROW(validate(parse_csv("0F0\n"), 1), LogicError);
}

}  // namespace
}  // namespace orthant::validate_test

// Every mesh of up to eight ranks that shards sequences equals one rank, in every dtype and with data ranks that have
// no sequence. The negative control counts positions from 0 on every rank.
#include <gtest/gtest.h>

#include "runtime/verify.h"
#include "tests/support/sequence_cuts.h"
#include "tests/support/sweep.h"

namespace orthant::sequence_meshes_test {
namespace {

std::vector<Cut> cuts_of(std::initializer_list<int> products) {
  std::vector<Cut> cuts;
  for (const int ranks : products) {
    for (int ulysses = 1; ulysses <= ranks; ++ulysses) {
      if (ranks % ulysses == 0) cuts.push_back({ulysses, ranks / ulysses});
    }
  }
  return cuts;
}

// Each key head serves two or more ranks, and some meshes shard the heads unevenly.
const std::string kBatch = "training.global_batch_size=3";
const std::vector<std::string> kEightHeads = {"model.hidden_size=32", "model.num_attention_heads=8", kBatch};
const std::vector<std::string> kSixHeads = {"model.num_attention_heads=6", kBatch};

NamedError error_of(const TinyRun& run, const Cut& cut, const RankTrace& want, const Course& course) {
  const Plan plan = run.plan(cut.ranks(), cut.overrides());
  return worst_of_run(plan, train_ranks(plan, run.data(), course), want);
}

// Compares loss, gradient norm, every gradient and every weight of five steps, on every rank.
SWEEP_TEST(SequenceMeshes, EveryUlyssesAndRingHasOneRanksNumbers) {
  const Course course{.steps = 5};
  const TinyRun eight(kEightHeads), six(kSixHeads);
  const auto expect = [&](const TinyRun& run, std::vector<Cut> cuts, std::initializer_list<int> rings) {
    for (const int ring : rings) cuts.push_back({1, ring, 1, {kTwoRings}});
    const auto want = train_ranks(run.plan(1), run.data(), course)[0];
    RankTrace first = want;
    first.steps.resize(1);
    for (const Cut& cut : sweep.of(cuts, 2)) {
      const NamedError worst = error_of(run, cut, want, course);
      EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
      EXPECT_GT(worst.error, 0) << "nothing was compared, " << cut.name();
    }
    // Control: every rank counts positions from 0.
    for (const Cut& cut : sweep.of(std::vector<Cut>{Cut{1, 5}, Cut{5, 1}, Cut{2, 3}}, 2))
      EXPECT_GT(error_of(run, cut, first, {.steps = 1, .fault = Fault::local_positions}).error, 1e-3);
  };
  expect(eight, cuts_of({2, 3, 4, 5, 6, 8}), {5, 6, 8});
  expect(six, cuts_of({4, 5, 6}), {});
}

// Below float64 verify compares each step from the oracle's weights, because rounding is bounded per step:
// docs/derivations.md. Positions that start from 0 on every rank exceed the bounds.
SWEEP_TEST(SequenceMeshes, RoundWithinTheirBoundsAndVerifySeesLocalPositions) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    std::vector<std::string> keys = kEightHeads;
    keys.push_back(fmt::format("training.dtype={}", dtype));
    const TinyRun run(keys);
    for (const Cut& cut :
         sweep.of(std::vector<Cut>{Cut{2, 2}, Cut{1, 5}, Cut{8, 1}, Cut{2, 3}, Cut{1, 4, 1, {kTwoRings}}, Cut{1, 2, 2}},
                  2)) {
      const Plan plan = run.plan(cut.ranks(), cut.overrides());
      const VerifyReport right = verify_layout(plan, run.data(), 2);
      EXPECT_TRUE(right.ok) << dtype << ", " << cut.name() << ": " << right.first_difference;
      const VerifyReport local = verify_with_fault(plan, run.data(), 1, Fault::local_positions);
      EXPECT_FALSE(local.ok) << dtype << ", " << cut.name();
      EXPECT_EQ(local.first_difference.rfind("step 1, rank ", 0), 0) << local.first_difference;
      EXPECT_NE(local.first_difference.find("the gradient of model."), std::string::npos) << local.first_difference;
      EXPECT_GT(local.gradients.relative_error, local.gradients.bound);
    }
  }
}

// Some data ranks have an empty last microbatch, others no sequence at all, while the ring must continue.
SWEEP_TEST(SequenceMeshes, DataRanksWithoutSequences) {
  for (const char* batch : {"training.global_batch_size=1", "training.global_batch_size=5"}) {
    const TinyRun run({batch, "training.local_batch_size=1"});
    const auto want = train_ranks(run.plan(1), run.data())[0];
    for (const Cut& cut : sweep.of(
             std::vector<Cut>{Cut{1, 2, 2}, Cut{1, 2, 3}, Cut{2, 1, 2}, Cut{2, 2, 2}, Cut{1, 2, 2, {kTwoRings}}}, 2)) {
      const Plan plan = run.plan(cut.ranks(), cut.overrides());
      EXPECT_EQ(plan.data_shards.back().microbatches.back().size(), 0) << batch << ", " << cut.name();
      const NamedError worst = worst_of_run(plan, train_ranks(plan, run.data()), want);
      EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << batch << ", " << cut.name();
    }
  }
}

// The last batch of the held-out text is one sequence, so that only one data rank has a part of it.
SWEEP_TEST(SequenceMeshes, ValidateWhereTheLastBatchIsOneSequence) {
  const TinyRun run;
  const std::string batch =
      fmt::format("training.global_batch_size={}", run.data().validation[0].samples.num_samples() - 1);
  const auto sums_over = [&](const Cut& cut) {
    auto keys = cut.overrides();
    keys.push_back(batch);
    return validate_ranks(run.plan(cut.ranks(), keys), run.data());
  };
  const auto one = sums_over({1, 1})[0];
  EXPECT_EQ(one.labels, run.data().validation[0].samples.num_tokens() - 1);
  for (const Cut& cut :
       sweep.of(std::vector<Cut>{Cut{1, 2, 2}, Cut{1, 2, 3}, Cut{2, 2, 2}, Cut{1, 2, 2, {kTwoRings}}}, 2)) {
    for (const auto& sum : sums_over(cut)) {
      EXPECT_EQ(sum.labels, one.labels) << cut.name();
      EXPECT_EQ(sum.bytes, one.bytes) << cut.name();
      EXPECT_LT(relative_error(sum.nats, one.nats), 1e-12) << cut.name();
    }
  }
}

}  // namespace
}  // namespace orthant::sequence_meshes_test

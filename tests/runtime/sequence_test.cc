// Training runs with sequences sharded over ranks: every number equals one rank's within 1e-10, and the planned bytes
// are sent.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "config/parallelism_check.h"
#include "runtime/verify.h"
#include "tests/support/says.h"
#include "tests/support/sequence_cuts.h"
#include "tests/support/sweep.h"

namespace orthant::sequence_test {
namespace {

std::vector<Cut> cuts() {
  return {{2, 1, 1},
          {1, 2, 1},
          {2, 2, 1},
          {4, 1, 1},
          {1, 4, 1},
          {1, 3, 1},
          {3, 1, 1},
          {2, 2, 2},
          {1, 2, 2},
          {2, 1, 3},
          {1, 2, 1, {"parallelism.context_parallel_placement=contiguous"}},
          {2, 3, 1, {"parallelism.context_parallel_placement=stripe"}},
          {1, 4, 1, {"parallelism.context_parallel_window=2"}},
          {1, 2, 1, {"activation_checkpoint.mode=full"}},
          {2, 2, 1, {"model.dropout=0.2"}},
          {1, 2, 2, {kTwoRings}},
          {2, 2, 1, {kTwoRings, "parallelism.context_parallel_reduction=all_reduce"}}};
}

// keys: changes to both runs.
void expect_one_ranks_numbers(const TinyRun& run, const Cut& cut, const std::vector<std::string>& keys = {}) {
  std::vector<std::string> shared = keys;
  for (const std::string& word : cut.more) {
    if (word.rfind("model.", 0) == 0) shared.push_back(word);
  }
  std::vector<std::string> changed = cut.overrides();
  changed.insert(changed.end(), keys.begin(), keys.end());
  const Plan alone = run.plan(1, shared), plan = run.plan(cut.ranks(), changed);
  const auto want = train_ranks(alone, run.data())[0];
  const NamedError worst = worst_of_run(plan, train_ranks(plan, run.data()), want);
  EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
}

SWEEP_TEST(SequenceRuns, HaveOneRanksNumbers) {
  const TinyRun run;
  for (const Cut& cut : sweep.of(cuts(), 3)) expect_one_ranks_numbers(run, cut);
}

SWEEP_TEST(SequenceRuns, WithDocumentsAndWindows) {
  const TinyRun run({"data.mask_documents=true", "data.long_documents=cut"});
  for (const Cut& cut : sweep.of(std::vector<Cut>{Cut{2, 2, 1}, Cut{1, 3, 1}, Cut{1, 2, 1, {kTwoRings}}}, 2)) {
    expect_one_ranks_numbers(run, cut);
    expect_one_ranks_numbers(run, cut, {"model.sliding_window=5"});
  }
}

SWEEP_TEST(SequenceRuns, SendWhatThePlanSays) {
  const TinyRun run;
  for (const Cut& cut : sweep.of(cuts(), 3)) {
    const Plan plan = run.plan(cut.ranks(), cut.overrides());
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << cut.name() << ", rank " << rank;
    }
  }
}

// Ring Self-Attention, check 5: after five steps of Adam, parameters and gradients of all ranks are equal in every bit.
SWEEP_TEST(SequenceRuns, KeepTheirReplicasInStep) {
  const TinyRun run({"training.dtype=float32"});
  for (const Cut& cut : sweep.of(std::vector<Cut>{Cut{2, 2, 2}, Cut{1, 4, 1}, Cut{1, 2, 2, {kTwoRings}}}, 2)) {
    const auto ranks = train_ranks(run.plan(cut.ranks(), cut.overrides()), run.data(), {.steps = 5});
    for (const RankTrace& rank : ranks) {
      EXPECT_TRUE(rank.last().weights.equal(ranks[0].last().weights)) << cut.name();
      EXPECT_TRUE(rank.last().gradients.equal(ranks[0].last().gradients)) << cut.name();
    }
    EXPECT_FALSE(ranks[0].last().weights.equal(ranks[0].steps[0].weights));
  }
  // Control: without the reduction of one bucket, the replicas drift apart.
  const Plan plan = run.plan(4, Cut{1, 4, 1}.overrides());
  const auto ranks = train_ranks(plan, run.data(), {.steps = 2, .fault = Fault::dropped_reduction});
  EXPECT_FALSE(ranks[1].last().weights.equal(ranks[0].last().weights));
}

// Unified Sequence Parallelism, check 10. In float32, gradients are within 1e-5 and the loss within 1e-6 of one rank's,
// whichever axis carries the four ranks. In bfloat16, a hundred steps stay within 0.02 of one rank's.
SWEEP_TEST(SequenceRuns, InLowerPrecisionAreWithinTheReferencesBounds) {
  const Cut cuts_of_four[] = {{2, 2, 1}, {1, 1, 4}, {1, 2, 2}, {2, 1, 2}, {1, 4, 1}, {1, 4, 1, {kTwoRings}}};
  const TinyRun single({"training.dtype=float32"});
  const Plan alone = single.plan(1);
  const auto want = train_ranks(alone, single.data(), {.steps = 1})[0];
  for (const Cut& cut : sweep.of(cuts_of_four, 2)) {
    const Plan plan = single.plan(cut.ranks(), cut.overrides());
    const auto have = train_ranks(plan, single.data(), {.steps = 1})[0];
    EXPECT_LT(relative_error(have.last().loss, want.last().loss), 1e-6) << cut.name();
    EXPECT_LT(worst_parameter(plan, have.last().gradients, want.last().gradients).error, 1e-5) << cut.name();
  }
  const TinyRun half(
      {"training.dtype=bfloat16", "training.steps=100", "training.global_batch_size=4", "training.local_batch_size=4"});
  const auto long_run = train_ranks(half.plan(1), half.data(), {.steps = 100})[0];
  EXPECT_LT(long_run.last().loss, 0.9 * long_run.steps[0].loss) << "nothing was learnt";
  for (const Cut& cut : sweep.of(std::vector<Cut>{cuts_of_four[0], cuts_of_four[1], cuts_of_four[5]}, 2)) {
    const auto have = train_ranks(half.plan(cut.ranks(), cut.overrides()), half.data(), {.steps = 100})[0];
    for (size_t step = 0; step < have.steps.size(); ++step) {
      EXPECT_NEAR(have.steps[step].loss, long_run.steps[step].loss, 0.02) << cut.name() << ", step " << step + 1;
    }
  }
  // Control: if every rank counts positions from 0, the losses take another course.
  const auto local = train_ranks(half.plan(4, cuts_of_four[0].overrides()), half.data(),
                                 {.steps = 20, .fault = Fault::local_positions})[0];
  double farthest = 0;
  for (size_t step = 0; step < local.steps.size(); ++step)
    farthest = std::max(farthest, std::abs(local.steps[step].loss - long_run.steps[step].loss));
  EXPECT_GT(farthest, 0.04);
}

// Ring Self-Attention, check 16: every length is legal, and no sequence is truncated.
SWEEP_TEST(SequenceRuns, OfAnyLength) {
  for (const char* length : {"training.seq_len=13", "training.seq_len=31"}) {
    const TinyRun run({length});
    for (const Cut& cut :
         sweep.of(std::vector<Cut>{Cut{1, 3, 1}, Cut{2, 2, 1}, Cut{4, 1, 1}, Cut{1, 4, 1, {kTwoRings}}}, 2))
      expect_one_ranks_numbers(run, cut);
  }
}

TEST(SequenceRuns, GoOnAtAnotherCut) {
  const TinyRun run;
  const auto whole = train_ranks(run.plan(1), run.data(), {.steps = 6})[0];
  const Cut first{2, 2, 1}, second{1, 2, 2};
  train_ranks(run.plan(4, first.overrides()), run.data(), {.steps = 3, .save = true});
  const Plan plan = run.plan(4, second.overrides());
  const auto resumed =
      train_ranks(plan, run.data(), {.steps = 6, .resume_from = run.folder() + "/out/checkpoints/step-000003"});
  EXPECT_LT(worst_parameter(plan, resumed[0].last().weights, whole.last().weights).error, 1e-10);
}

SWEEP_TEST(SequenceRuns, VerifyAcceptsWhatIsRightAndSeesAMean) {
  const TinyRun run;
  for (const Cut& cut : sweep.of(std::vector<Cut>{Cut{2, 2, 1}, Cut{1, 2, 2, {kTwoRings}}}, 2)) {
    const Plan plan = run.plan(cut.ranks(), cut.overrides());
    EXPECT_TRUE(verify_layout(plan, run.data(), 2).ok) << cut.name();
    EXPECT_FALSE(verify_with_fault(plan, run.data(), 2, Fault::stray_mean).ok) << cut.name();
    EXPECT_FALSE(verify_with_fault(plan, run.data(), 2, Fault::dropped_reduction).ok) << cut.name();
  }
}

TEST(SequenceRuns, AreRefusedWithTheNearestLegalCut) {
  const TinyRun run;
  const auto refusal = [&](int ranks, const std::vector<std::string>& keys) {
    try {
      run.plan(ranks, keys);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_TRUE(says(refusal(8, {"parallelism.context_parallel_ulysses=8"}),
                   {"context_parallel_ulysses = 8", "must be at most model.num_attention_heads = 4", "; set it to 4"}));
  EXPECT_TRUE(
      says(refusal(16, {"parallelism.context_parallel_ring=16"}), {"training.seq_len = 16", "; set it to 32"}));
  EXPECT_TRUE(says(refusal(4, {"parallelism.context_parallel_ring=4", "parallelism.context_parallel_window=3"}),
                   {"context_parallel_window = 3", "a divisor from 2 to half of parallelism.context_parallel_ring = 4",
                    "; set it to 2"}));
  EXPECT_TRUE(says(refusal(6, {"parallelism.context_parallel_ring=4"}),
                   {"context_parallel_ring = 4", "its 4 ranks must divide the 6 ranks", "run.ranks to "}));
  const std::vector<std::string> rest = {"parallelism.context_parallel_ring=-1", "parallelism.data_parallel_degree=2"};
  EXPECT_EQ(refusal(6, rest), "accepted");
  // Settings of a ring have no effect if the ring is one rank, also if it is the rest that the other degrees leave. The
  // plan names them.
  for (const auto& [key, value] : {std::pair{"attention", "ring_self_attention"}, std::pair{"placement", "stripe"},
                                   std::pair{"window", "1"}}) {
    auto keys = rest;
    keys.push_back(fmt::format("parallelism.context_parallel_{}={}", key, value));
    const Plan plan = run.plan(2, keys);
    const std::vector<std::string> idle = idle_settings(plan.given, plan.mesh);
    ASSERT_EQ(idle.size(), 1U) << key;
    EXPECT_TRUE(says(idle[0], {fmt::format("context_parallel_{} = ", key),
                               "has no effect, because parallelism.context_parallel_ring is 1 on these ranks"}));
  }
}

}  // namespace
}  // namespace orthant::sequence_test

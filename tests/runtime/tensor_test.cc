// Training runs with weights sharded over a tensor mesh: every number equals one rank's within 1e-10, the planned bytes
// are sent, and checkpoints resume on other meshes.
#include <gtest/gtest.h>

#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::tensor_test {
namespace {

// Layouts for a batch of 8 sequences of 16 tokens, with four query heads and two key heads.
std::vector<TensorCut> cuts() {
  return {one_dimension(2),
          one_dimension(2, {kNoSequence}),
          one_dimension(2, {}, 2),
          grid(2, 2, 1),
          grid(2, 2, 1, {kSumma}),
          grid(2, 2, 2),
          grid(2, 2, 2, {kSumma}),
          grid(1, 2, 4),
          grid(1, 1, 8),
          grid(4, 1, 1),
          grid(4, 2, 1, {"parallelism.bucket_mib=0.005"}),
          grid(2, 1, 2, {}, 2),
          grid(2, 2, 1, {kWithRing}, 2),
          grid(2, 1, 2, {kWithUlysses}, 2),
          grid(1, 2, 2, {kWithRing, kWithUlysses}, 4),
          one_dimension(2, {kWithRing}, 2),
          one_dimension(2, {kWithUlysses, kNoSequence}, 2)};
}

SWEEP_TEST(TensorRuns, HaveOneRanksNumbers) {
  const TinyRun run(kBatch);
  const auto want = train_ranks(run.plan(1), run.data())[0];
  for (const TensorCut& cut : sweep.of(cuts(), 3)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const NamedError worst = worst_of_run(plan, train_ranks(plan, run.data()), want);
    EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
  }
}

// Tied embeddings, dropout, recomputation, documents, and a norm limit so low that gradients are clipped.
SWEEP_TEST(TensorRuns, OfOtherModelsHaveOneRanksNumbers) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"model.tie_word_embeddings=true"},
                                               {"model.dropout=0.2", kRecompute},
                                               {"training.max_norm=0.05"},
                                               {"data.mask_documents=true", "data.long_documents=cut"}}) {
    std::vector<std::string> keys = kBatch;
    keys.insert(keys.end(), more.begin(), more.end());
    const TinyRun run(keys);
    const auto want = train_ranks(run.plan(1), run.data())[0];
    for (const TensorCut& cut : sweep.of(std::vector<TensorCut>{one_dimension(2), grid(2, 2, 2),
                                                                grid(2, 2, 1, {kSumma}), grid(2, 1, 1, {kWithRing}, 2)},
                                         2)) {
      const Plan plan = run.plan(cut.ranks, cut.keys);
      const NamedError worst = worst_of_run(plan, train_ranks(plan, run.data()), want);
      EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name() << ", " << more[0];
    }
  }
}

SWEEP_TEST(TensorRuns, SendWhatThePlanSays) {
  const TinyRun run(kBatch);
  for (const TensorCut& cut : sweep.of(cuts(), 3)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << cut.name() << ", rank " << rank;
    }
  }
}

// Residual streams large enough to move in panels: more calls, and the numbers of one rank.
SWEEP_TEST(TensorRuns, PassTheStreamInPanels) {
  const TinyRun run({"training.global_batch_size=32", "training.local_batch_size=16", "training.seq_len=512",
                     "model.max_position_embeddings=512", "model.hidden_size=96"});
  const auto want = train_ranks(run.plan(1), run.data(), {.steps = 1})[0];
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{one_dimension(2), one_dimension(2, {kNoSequence}), grid(2, 2, 1), grid(1, 2, 2)},
                2)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const StreamPanels panels = stream_panels(plan.tensor, 16, 512, 96, true, 8);
    EXPECT_EQ(panels.panels.size(), 3U) << cut.name();
    const auto ranks = train_ranks(plan, run.data(), {.steps = 1});
    const NamedError worst = worst_of_run(plan, ranks, want);
    EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_EQ(ranks[rank].last().traffic, planned_traffic(plan, rank)) << cut.name() << ", rank " << rank;
    }
  }
}

TEST(TensorRuns, GoOnOnAnotherMesh) {
  const TinyRun run(kBatch);
  const auto want = train_ranks(run.plan(1), run.data(), {.steps = 4})[0];
  const TensorCut cuts_in_turn[] = {grid(2, 2, 2), one_dimension(2), grid(4, 1, 1), {1, {}}, grid(2, 2, 1, {kSumma})};
  for (size_t i = 0; i + 1 < std::size(cuts_in_turn); ++i) {
    const Plan first = run.plan(cuts_in_turn[i].ranks, cuts_in_turn[i].keys);
    train_ranks(first, run.data(), {.steps = 2, .save = true});
    const std::string saved = run.folder() + "/out/checkpoints/step-000002";
    const Plan next = run.plan(cuts_in_turn[i + 1].ranks, cuts_in_turn[i + 1].keys);
    const auto have = train_ranks(next, run.data(), {.steps = 4, .resume_from = saved});
    for (size_t rank = 0; rank < have.size(); ++rank) {
      const NamedError weight =
          worst_parameter(next, have[rank].last().weights, want.last().weights, static_cast<int>(rank));
      EXPECT_LT(weight.error, 1e-10) << weight.name << ", " << cuts_in_turn[i].name() << " then "
                                     << cuts_in_turn[i + 1].name();
    }
  }
}

SWEEP_TEST(TensorRuns, ValidateAsOneRank) {
  const TinyRun run(kBatch);
  const auto one = validate_ranks(run.plan(1), run.data())[0];
  ASSERT_NE(run.data().validation[0].samples.num_samples() % 8, 0) << "else no rank is without a sequence";
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{one_dimension(2), grid(4, 2, 1), grid(2, 1, 4), grid(2, 1, 1, {kWithRing}, 2),
                                       grid(2, 2, 1, {kWithRing}, 2), grid(4, 1, 1, {kWithRing}, 2)},
                2)) {
    for (const auto& have : validate_ranks(run.plan(cut.ranks, cut.keys), run.data())) {
      EXPECT_LT(relative_error(have.nats, one.nats), 1e-12) << cut.name();
      EXPECT_EQ(have.labels, one.labels) << cut.name();
    }
  }
}

}  // namespace
}  // namespace orthant::tensor_test

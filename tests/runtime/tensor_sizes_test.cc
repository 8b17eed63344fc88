// Sizes that no mesh divides, and bfloat16 runs whose residual stream moves in panels or that resume on another mesh.
// The reference is the run of one rank.
#include <gtest/gtest.h>

#include "plan/rounding.h"
#include "runtime/verify.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::tensor_sizes_test {
namespace {

// Vocabulary, hidden and intermediate size are multiples of neither 2 nor 3. There are three heads.
std::vector<std::string> odd_sizes(const std::string& tokens) {
  return {kBatch[0],
          "model.vocab_size=1003",
          "model.hidden_size=31",
          "model.intermediate_size=41",
          "model.num_attention_heads=3",
          "model.num_key_value_heads=3",
          "model.head_dim=10",
          "training.seq_len=" + tokens};
}

void expect_one_ranks_run(const TinyRun& run, const TensorCut& cut, const RankTrace& want) {
  const Plan plan = run.plan(cut.ranks, cut.keys);
  const auto have = train_ranks(plan, run.data());
  const NamedError worst = worst_of_run(plan, have, want);
  EXPECT_LT(worst.error, 1e-10) << worst.name << ", " << cut.name();
  for (size_t rank = 0; rank < have.size(); ++rank)
    EXPECT_EQ(have[rank].last().traffic, planned_traffic(plan, rank)) << cut.name() << ", rank " << rank;
}

SWEEP_TEST(TensorSizes, NeedNotDivide) {
  const TinyRun run(odd_sizes("16"));
  const auto want = train_ranks(run.plan(1), run.data())[0];
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{one_dimension(3, {kNoSequence}), grid(1, 3, 1), grid(4, 3, 1),
                                       grid(4, 3, 1, {kSumma}), grid(2, 3, 2), grid(2, 3, 2, {kSumma}), grid(2, 1, 4),
                                       grid(2, 3, 1, {kWithRing}, 2)},
                2)) {
    expect_one_ranks_run(run, cut, want);
  }
  const TinyRun by_three(odd_sizes("15"));
  expect_one_ranks_run(by_three, one_dimension(3), train_ranks(by_three.plan(1), by_three.data())[0]);
}

SWEEP_TEST(TensorSizes, NeedNotDivideWhereARunGoesOn) {
  const TinyRun run(odd_sizes("16"));
  const auto want = train_ranks(run.plan(1), run.data())[0];
  const TensorCut first = grid(2, 3, 2);
  train_ranks(run.plan(first.ranks, first.keys), run.data(), {.steps = 2, .save = true});
  const std::string saved = run.folder() + "/out/checkpoints/step-000002";
  for (const TensorCut& next : sweep.of(std::vector<TensorCut>{grid(4, 3, 1), TensorCut{1, {}}}, 2)) {
    const Plan plan = run.plan(next.ranks, next.keys);
    const auto have = train_ranks(plan, run.data(), {.resume_from = saved});
    for (size_t rank = 0; rank < have.size(); ++rank) {
      const NamedError weight =
          worst_parameter(plan, have[rank].last().weights, want.last().weights, static_cast<int>(rank));
      EXPECT_LT(weight.error, 1e-10) << weight.name << ", " << next.name();
    }
  }
}

SWEEP_TEST(TensorBfloat16, MayPassTheStreamInPanels) {
  const TinyRun run({"training.global_batch_size=96", "training.local_batch_size=48", "training.seq_len=512",
                     "training.dtype=bfloat16", "model.max_position_embeddings=512", "model.hidden_size=96"});
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{one_dimension(2), one_dimension(2, {kNoSequence}), grid(1, 2, 1), grid(2, 2, 1)},
                2)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const int64_t sequences = plan.data_shards[0].microbatches[0].size();
    EXPECT_GT(stream_panels(plan.tensor, sequences, 512, 96, true, 2).panels.size(), 1U) << cut.name();
    const VerifyReport report = verify_layout(plan, run.data(), 1);
    EXPECT_TRUE(report.ok) << cut.name() << ": " << report.first_difference;
  }
}

// Master weights and moments load as they were saved, in every bit. The gradients of the next step equal one rank's
// within rounding. (Weights that AdamW computes from gradients with different rounding have no such bound:
// docs/derivations.md.)
SWEEP_TEST(TensorBfloat16, GoesOnOnAnotherMesh) {
  const TinyRun run({kBatch[0], "training.dtype=bfloat16"});
  const TensorCut first = grid(2, 2, 2);
  train_ranks(run.plan(first.ranks, first.keys), run.data(), {.steps = 2, .save = true});
  const auto go_on = [&](const TensorCut& cut, std::vector<at::Tensor>& loaded) {
    loaded.resize(static_cast<size_t>(cut.ranks));
    Course course{.resume_from = run.folder() + "/out/checkpoints/step-000002"};
    course.prepare = [&](Session& session, int rank) {
      std::vector<at::Tensor> all = copy_state(session.optimizer());
      all.insert(all.begin(), session.weights().masters());
      loaded[static_cast<size_t>(rank)] = at::stack(all);
    };
    return train_ranks(run.plan(cut.ranks, cut.keys), run.data(), course);
  };
  std::vector<at::Tensor> saved;
  const auto one = go_on({1, {}}, saved)[0];
  ASSERT_EQ(one.steps.size(), 1u);
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{one_dimension(2), grid(4, 1, 1), grid(2, 2, 1, {kSumma}), grid(1, 2, 4)}, 2)) {
    const Plan plan = run.plan(cut.ranks, cut.keys);
    const RoundingBounds bounds = rounding_bounds(plan);
    std::vector<at::Tensor> loaded;
    const auto have = go_on(cut, loaded);
    for (int rank = 0; rank < cut.ranks; ++rank) {
      const auto at = static_cast<size_t>(rank);
      for (int64_t state = 0; state < 3; ++state)
        EXPECT_EQ(worst_parameter(plan, loaded[at][state], saved[0][state], rank).error, 0) << cut.name();
      EXPECT_LE(relative_error(have[at].last().loss, one.last().loss), bounds.gradients) << cut.name();
      const NamedError gradient = worst_parameter(plan, have[at].last().gradients, one.last().gradients, rank);
      EXPECT_LE(gradient.error, bounds.gradients) << gradient.name << ", " << cut.name();
    }
  }
  // Control: the gradients of a run that starts anew exceed the bound.
  const auto anew = train_ranks(run.plan(1), run.data(), {.steps = 1})[0];
  EXPECT_GT(worst_parameter(run.plan(1), anew.last().gradients, one.last().gradients).error,
            rounding_bounds(run.plan(8, first.keys)).gradients);
}

}  // namespace
}  // namespace orthant::tensor_sizes_test

// verify_layout() accepts correct layouts, and names the tensor for every planted mistake.
#include "runtime/verify.h"

#include "base/errors.h"
#include "tests/support/pipelines.h"
#include "tests/support/says.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/tiny_run.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace orthant::verify_test {
namespace {

TEST(Verify, EveryNumberOfRanksEqualsOneDevice) {
  const TinyRun run;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const VerifyReport report = verify_layout(run.plan(ranks), run.data(), 3);
    EXPECT_TRUE(report.ok) << ranks << " ranks: " << report.first_difference;
    EXPECT_EQ(report.steps, 3);
    EXPECT_FALSE(report.gradients.name.empty());
    EXPECT_FALSE(report.weights.name.empty());
    EXPECT_LE(report.gradients.relative_error, 1e-10);
    EXPECT_LE(report.loss_error, 1e-10);
    // Sums in another order differ in their last bits; no difference at all would mean that nothing was compared.
    if (ranks == 1) {
      EXPECT_EQ(report.gradients.relative_error, 0.0);
    } else {
      EXPECT_GT(report.gradients.relative_error, 0.0) << ranks << " ranks";
    }
  }
}

TEST(Verify, LossesAreThoseOfTrainingInTheSameStep) {
  for (const char* dtype : {"float64", "float32"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype)});
    const Plan plan = run.plan(3);
    const VerifyReport report = verify_layout(plan, run.data(), 3);
    ASSERT_GE(report.loss_step, 1) << dtype;
    ASSERT_LE(report.loss_step, 3) << dtype;
    const auto step = static_cast<size_t>(report.loss_step - 1);
    EXPECT_EQ(report.oracle_loss, train_ranks(run.plan(1), run.data()).front().steps[step].loss) << dtype;
    const double layout = train_ranks(plan, run.data()).front().steps[step].loss;
    EXPECT_LT(relative_error(report.layout_loss, layout), std::string(dtype) == "float64" ? 1e-15 : 1e-5) << dtype;
  }
}

TEST(Verify, StartsFromTheWeightsThatTrainingStartsFrom) {
  const TinyRun run({"training.dtype=float32"});
  train_ranks(run.plan(1), run.data(), {.steps = 2, .save = true});
  const std::string from = "model.from=" + run.folder() + "/out/checkpoints/step-000002";
  const Plan plan = run.plan(2, {from, "training.seed_weights=false"});
  const VerifyReport drawn = verify_layout(run.plan(2), run.data(), 1);
  const VerifyReport loaded = verify_layout(plan, run.data(), 1);
  EXPECT_TRUE(loaded.ok) << loaded.first_difference;
  EXPECT_EQ(loaded.loss_step, 1);
  EXPECT_LT(loaded.oracle_loss, drawn.oracle_loss) << "two steps have lowered the loss of the same batch";
}

TEST(Verify, HoldsForSgdInEveryKindOfLayout) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype), "optimizer.name=sgd", "optimizer.weight_decay_on=all",
                       "training.global_batch_size=8", "model.attention_bias=true"});
    for (const TensorCut& cut : {TensorCut{3, {}}, {2, {kWithRing}}, grid(2, 2, 1), {2, pipeline("zb_h1", 2)}}) {
      const VerifyReport report = verify_layout(run.plan(cut.ranks, cut.keys), run.data(), 3);
      EXPECT_TRUE(report.ok) << dtype << ", " << cut.name() << ": " << report.first_difference;
    }
    EXPECT_FALSE(verify_with_fault(run.plan(3), run.data(), 1, Fault::stray_mean).ok);
  }
}

TEST(Verify, RoundingBoundHoldsInFloat32AndBfloat16) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype)});
    for (const int ranks : {2, 3}) {
      const VerifyReport report = verify_layout(run.plan(ranks), run.data(), 3);
      EXPECT_TRUE(report.ok) << dtype << ", " << ranks << " ranks: " << report.first_difference;
    }
  }
}

// A single visible key has probability 1, whatever the scores. Gradients of queries and keys are then zero except for
// rounding.
TEST(Verify, GradientsOfNothingButRoundingAreNoDifference) {
  const std::vector<std::string> ring = {"parallelism.context_parallel_ring=2"};
  const std::vector<std::string> heads = {"parallelism.context_parallel_ulysses=2"};
  for (const char* initial : {"0.02", "0.2"}) {
    const TinyRun window({"model.sliding_window=1", fmt::format("model.initializer_range={}", initial)});
    const TinyRun short_run({"training.seq_len=1", fmt::format("model.initializer_range={}", initial)});
    for (const Plan& plan : {window.plan(2), window.plan(2, ring), window.plan(4, heads), short_run.plan(2)}) {
      const TrainingData& data = plan.config.training.seq_len == 1 ? short_run.data() : window.data();
      const VerifyReport report = verify_layout(plan, data, 3);
      EXPECT_TRUE(report.ok) << plan.mesh_text() << ": " << report.first_difference;
    }
  }
}

// The error that is allowed for such gradients is far below gradients that are merely small.
TEST(NegativeControls, AFaultInASmallGradientIsFound) {
  const TinyRun run({"model.tie_word_embeddings=true", "model.initializer_range=0.0005"});
  const Plan plan = run.plan(3, {"parallelism.bucket_mib=0.02"});
  const VerifyReport report = verify_with_fault(plan, run.data(), 1, Fault::dropped_reduction);
  const std::string name = "model.layers.1.mlp.gate_proj.weight";
  EXPECT_TRUE(says(report.first_difference, {"the gradient of " + name}));
  const auto oracle = train_ranks(run.plan(1), run.data(), {.steps = 1});
  const at::Tensor all = oracle[0].last().gradients;
  const FlatLayout flat = flat_layout(plan.parameters);
  const auto index = std::ranges::find(plan.parameters, name, &ParameterInfo::name) - plan.parameters.begin();
  const auto small = static_cast<size_t>(index);
  const at::Tensor part = all.narrow(0, flat.parameter_offsets[small], plan.parameters[small].size());
  EXPECT_LT(part.norm().item<double>(), 1e-5 * oracle[0].last().norm);
}

TEST(Verify, WithoutALabelNothingIsCompared) {
  for (int seed = 1; seed < 50; ++seed) {
    const TinyRun run({"model.objective=masked", "model.masked_share=0.07", "training.global_batch_size=1",
                       "training.local_batch_size=1", fmt::format("training.seed={}", seed)});
    const VerifyReport report = verify_layout(run.plan(2), run.data(), 1);
    EXPECT_EQ(report.ok, report.labels > 0) << report.first_difference;
    if (report.labels == 0) return;
  }
  FAIL() << "every batch has a masked token";
}

// Progress covers the requested steps, once for the oracle and once for the layout.
TEST(Verify, TellsHowFarItIs) {
  const TinyRun run;
  std::vector<std::string> told;
  verify_layout(run.plan(2), run.data(), 2, [&](const std::string& who, int64_t done, int64_t all) {
    told.push_back(fmt::format("{} {}/{}", who, done, all));
  });
  EXPECT_EQ(told, (std::vector<std::string>{"one device 0/2", "one device 1/2", "one device 2/2", "the layout 0/2",
                                            "the layout 1/2", "the layout 2/2"}));
}

TEST(Verify, AnOracleThatIsNotFiniteIsNoFaultOfTheLayout) {
  const auto message_of = [](const std::vector<std::string>& overrides) -> std::string {
    const TinyRun run(overrides);
    try {
      return verify_layout(run.plan(2), run.data(), 3).first_difference;
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_TRUE(says(message_of({"model.initializer_range=1e308"}),
                   {"the one-rank oracle is not finite in step 1: the weight model.", "The layout has no part in it"}));
  EXPECT_TRUE(says(message_of({"optimizer.lr=1e307", "optimizer.weight_decay=1e300", "lr_scheduler.warmup_steps=0"}),
                   {"the one-rank oracle is not finite in step 1, after the update: the weight model."}));
}

struct Control {
  Fault fault;
  const char* name;
};

class NegativeControl : public ::testing::TestWithParam<Control> {};
INSTANTIATE_TEST_SUITE_P(Planted, NegativeControl,
                         ::testing::Values(Control{Fault::dropped_reduction, "dropped_reduction"},
                                           Control{Fault::stray_mean, "stray_mean"},
                                           Control{Fault::wrong_shard, "wrong_shard"}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(NegativeControl, FailsInEveryDtypeAndNamesTheTensor) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype)});
    for (const int ranks : {2, 3}) {
      const VerifyReport report = verify_with_fault(run.plan(ranks), run.data(), 2, GetParam().fault);
      EXPECT_FALSE(report.ok) << dtype << ", " << ranks << " ranks";
      EXPECT_TRUE(says(report.first_difference, {"step 1", "rank ", "the gradient of model.", ".weight"}));
      EXPECT_GT(report.gradients.relative_error, report.gradients.bound);
    }
  }
}

// So a control with faulty primitives fails because of its factor, not because of the wrapper.
TEST(NegativeControls, FaultyPrimitivesWithAFactorOfOneAreRight) {
  for (const char* dtype : {"float64", "float32"}) {
    const TinyRun run({"model.attention_bias=true", "model.mlp_bias=true", fmt::format("training.dtype={}", dtype)});
    const Plan plan = run.plan(2);
    const OracleTrace oracle = trace_oracle(plan, run.data(), 2);
    for (const double factor : {1.0, 1.01}) {
      const auto parts_of = [factor](const Plan& own, Comm& comm) {
        const auto every = [factor](const Weight&) { return factor; };
        SessionParts parts = session_parts(own, comm);
        parts.primitives = with_scaled_bias_gradients(std::move(parts.primitives), every);
        parts.primitives = with_scaled_matrix_gradients(std::move(parts.primitives), every);
        parts.primitives = with_scaled_gradients(std::move(parts.primitives), factor);
        return parts;
      };
      const VerifyReport report = verify_against(oracle, plan, run.data(), {}, parts_of);
      EXPECT_EQ(report.ok, factor == 1) << dtype << ": " << report.first_difference;
    }
  }
}

TEST(NegativeControls, DroppedReductionIsFoundInTheBucketThatWasDropped) {
  const TinyRun run;
  const Plan plan = run.plan(2, {"parallelism.bucket_mib=0.02"});
  ASSERT_GT(plan.buckets.size(), 2u);
  const VerifyReport report = verify_with_fault(plan, run.data(), 1, Fault::dropped_reduction);
  EXPECT_FALSE(report.ok);
  const FlatLayout flat = flat_layout(plan.parameters);
  const auto first_weight = static_cast<size_t>(plan.buckets.back().weights.front());
  const ParameterInfo& expected = plan.parameters[flat.members[first_weight].first];
  EXPECT_TRUE(says(report.first_difference, {"the gradient of " + expected.name}));
}

TEST(NegativeControls, AMatrixIsNamedWithItsLayer) {
  // With tied embeddings, the dropped bucket begins in the last block.
  const TinyRun run({"model.tie_word_embeddings=true"});
  const Plan plan = run.plan(3, {"parallelism.bucket_mib=0.02"});
  const VerifyReport report = verify_with_fault(plan, run.data(), 1, Fault::dropped_reduction);
  EXPECT_TRUE(says(report.first_difference, {"model.layers.1.mlp.gate_proj.weight, layer 1"}));
}

}  // namespace
}  // namespace orthant::verify_test

// One loss curve for all meshes: the losses of every layout equal tests/golden/tiny_llama.txt within 1e-10 in float64.
//
// The oracle is train_plain(): one device, plain primitives, nothing of the engine. The negative controls are planted
// faults and another seed. After an intended change of the model, the data or the optimizer, write the file again:
//   build/tests/e2e_tests --gtest_filter='Golden.DISABLED_Write' --gtest_also_run_disabled_tests
#include "plan/rounding.h"
#include "runtime/verify.h"
#include "tests/support/pipelines.h"
#include "tests/support/plain_training.h"
#include "tests/support/tensor_cuts.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace orthant::golden_test {
namespace {

constexpr const char* kGoldenFile = ORTHANT_SOURCE_DIR "/tests/golden/tiny_llama.txt";
constexpr int64_t kGoldenSteps = 10;

std::vector<double> golden_curve() {
  std::ifstream file(kGoldenFile);
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream fields(line);
    int64_t step = 0;
    double loss = 0;
    fields >> step >> loss;
    EXPECT_EQ(step, static_cast<int64_t>(losses.size()) + 1) << line;
    losses.push_back(loss);
  }
  return losses;
}

TEST(Golden, TheCurveIsWholeAndFalls) {
  const auto golden = golden_curve();
  ASSERT_EQ(golden.size(), static_cast<size_t>(kGoldenSteps));
  EXPECT_LT(golden.back(), 0.95 * golden.front());
}

class GoldenRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(OneToEight, GoldenRanks, ::testing::Values(1, 2, 3, 4, 8));

TEST_P(GoldenRanks, ReproduceTheCurveInFloat64) {
  const auto golden = golden_curve();
  const TinyRun run;
  const auto ranks = train_ranks(run.plan(GetParam()), run.data(), {.steps = kGoldenSteps});
  for (size_t step = 0; step < golden.size(); ++step) {
    EXPECT_LE(relative_error(ranks[0].steps[step].loss, golden[step]), 1e-10) << "step " << step + 1;
  }
}

class GoldenCuts : public ::testing::TestWithParam<Cut> {};
INSTANTIATE_TEST_SUITE_P(OfSequences, GoldenCuts,
                         ::testing::Values(Cut{1, 2}, Cut{4, 1}, Cut{2, 2}, Cut{1, 5}, Cut{1, 8}, Cut{2, 2, 2},
                                           Cut{1, 3, 1, {kTwoRings}}),
                         [](const auto& instance) {
                           const Cut& cut = instance.param;
                           return fmt::format("ulysses_{}_ring_{}_data_{}{}", cut.ulysses, cut.ring, cut.data,
                                              cut.more.empty() ? "" : "_self_attention");
                         });

TEST_P(GoldenCuts, ReproduceTheCurveInFloat64) {
  const auto golden = golden_curve();
  const TinyRun run;
  const Plan plan = run.plan(GetParam().ranks(), GetParam().overrides());
  const auto have = train_ranks(plan, run.data(), {.steps = kGoldenSteps});
  for (const RankTrace& rank : have) {
    for (size_t step = 0; step < golden.size(); ++step) {
      EXPECT_LE(relative_error(rank.steps[step].loss, golden[step]), 1e-10)
          << "step " << step + 1 << ", " << GetParam().name();
    }
  }
  // Control: if every rank numbers its positions from 0, the loss differs.
  const auto local = train_ranks(plan, run.data(), {.steps = 2, .fault = Fault::local_positions});
  EXPECT_GT(relative_error(local[0].steps[1].loss, golden[1]), kSeenInALoss) << GetParam().name();
}

// The number of rows must divide the seven sequences of a step. Seven rows hold uneven shards of every width.
TEST(Golden, IsTensorMeshesCurveInFloat64) {
  const auto golden = golden_curve();
  const TinyRun run;
  for (const TensorCut& cut : {one_dimension(2), one_dimension(2, {kNoSequence}), grid(1, 2, 1, {kSumma}),
                               grid(7, 1, 1), grid(1, 2, 1, {kWithRing}, 2)}) {
    const auto have = train_ranks(run.plan(cut.ranks, cut.keys), run.data(), {.steps = kGoldenSteps});
    for (const RankTrace& rank : have) {
      for (size_t step = 0; step < golden.size(); ++step)
        EXPECT_LE(relative_error(rank.steps[step].loss, golden[step]), 1e-10) << "step " << step + 1 << cut.name();
    }
  }
  // Control: if every rank of the ring numbers its positions from 0, the loss differs.
  const TensorCut cut = grid(1, 2, 1, {kWithRing}, 2);
  const auto local = train_ranks(run.plan(cut.ranks, cut.keys), run.data(),
                                 {.steps = 2, .fault = Fault::local_positions});
  EXPECT_GT(relative_error(local[0].steps[1].loss, golden[1]), kSeenInALoss);
}

// Pipelines. The model has two layers, one for each stage.
TEST(Golden, IsPipelinesCurveInFloat64) {
  const auto golden = golden_curve();
  const TinyRun run;
  for (const TensorCut& cut : {TensorCut{2, pipeline("gpipe", 2)}, {2, pipeline("1f1b", 2)}, {2, pipeline("zb_h1", 2)},
                               {4, pipeline("zb_h2", 2, {"parallelism.data_parallel_degree=2"})},
                               one_dimension(2, pipeline("zb_h1", 2), 2), {4, pipeline("1f1b", 2, {kWithRing})}}) {
    const auto have = train_ranks(run.plan(cut.ranks, cut.keys), run.data(), {.steps = kGoldenSteps});
    for (const RankTrace& rank : have) {
      for (size_t step = 0; step < golden.size(); ++step)
        EXPECT_LE(relative_error(rank.steps[step].loss, golden[step]), 1e-10) << "step " << step + 1 << cut.name();
    }
  }
  // Control: if a stage reads the output of another microbatch, the loss differs.
  const auto late = train_ranks(run.plan(2, pipeline("1f1b", 2)), run.data(),
                                {.steps = 2, .fault = Fault::exchanged_microbatches});
  EXPECT_GT(relative_error(late[0].steps[1].loss, golden[1]), kSeenInALoss);
}

// Bound of the float32 error of the loss at each step, relative to the curve: docs/derivations.md, "Whole runs".
std::vector<double> float32_bounds(const Plan& plan, const std::vector<StepTrace>& steps) {
  const double gradient = rounding_bounds(plan).gradients;
  const double root = std::sqrt(static_cast<double>(plan.num_parameters()));
  std::vector<double> bounds;
  double drift = 0;  // error of the loss, because the weights have left the curve
  for (const StepTrace& step : steps) {
    bounds.push_back(gradient + drift / step.loss);
    drift += 2 * plan.config.optimizer.lr * root * gradient * std::min(step.norm, plan.config.training.max_norm);
  }
  return bounds;
}

void expect_curve_in_float32(int ranks, const std::vector<std::string>& keys) {
  const auto golden = golden_curve();
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(ranks, keys);
  const auto steps = train_ranks(plan, run.data(), {.steps = kGoldenSteps}).front().steps;
  const auto bounds = float32_bounds(plan, steps);
  double worst = 0;
  for (size_t step = 0; step < golden.size(); ++step) {
    const double error = relative_error(steps[step].loss, golden[step]);
    EXPECT_LE(error, bounds[step]) << plan.mesh_text() << ", step " << step + 1;
    worst = std::max(worst, error);
  }
  EXPECT_GT(worst, 1e-10) << "a float32 run cannot be this close: which run was it?";
  ::testing::Test::RecordProperty("worst", fmt::format("{:.3e}", worst));
  ::testing::Test::RecordProperty("bound", fmt::format("{:.3e}", bounds.back()));
}

TEST_P(GoldenRanks, ReproduceTheCurveInFloat32WithinItsBound) { expect_curve_in_float32(GetParam(), {}); }
TEST_P(GoldenCuts, ReproduceTheCurveInFloat32WithinItsBound) {
  expect_curve_in_float32(GetParam().ranks(), GetParam().overrides());
}

TEST(Golden, IsPipelinesCurveInFloat32WithinItsBound) {
  const std::string two = "parallelism.data_parallel_degree=2";
  for (const TensorCut& cut : {TensorCut{2, pipeline("1f1b", 2)}, {2, pipeline("zb_h1", 2)},
                               {4, pipeline("gpipe", 2, {two})}, {4, pipeline("zb_h2", 2, {two})},
                               grid(1, 2, 1, pipeline("zb_h1", 2), 2)}) {
    expect_curve_in_float32(cut.ranks, cut.keys);
  }
  // Control: if a stage reads the output of another microbatch, the error exceeds the bound.
  const TinyRun run({"training.dtype=float32"});
  const Plan plan = run.plan(2, pipeline("1f1b", 2));
  const auto late = train_ranks(plan, run.data(), {.steps = 2, .fault = Fault::exchanged_microbatches}).front().steps;
  EXPECT_GT(relative_error(late[1].loss, golden_curve()[1]), float32_bounds(plan, late)[1]);
}

TEST(Golden, AnotherSeedIsAnotherCurve) {
  const auto golden = golden_curve();
  const TinyRun run({"training.seed=1235"});
  const auto ranks = train_ranks(run.plan(1), run.data(), {.steps = 2});
  EXPECT_GT(relative_error(ranks[0].steps[1].loss, golden[1]), kSeenInALoss);
}

TEST(Golden, DISABLED_Write) {
  const TinyRun run;
  const auto oracle = train_plain(run.plan(1), run.data(), kGoldenSteps);
  std::ofstream file(kGoldenFile);
  file << "# Loss of the tiny LLaMA of tests/support/tiny_run.h, float64, by step. Made by train_plain() of\n"
          "# tests/support/plain_training.h; how to make it again stands in tests/e2e/golden_test.cc.\n";
  for (size_t step = 0; step < oracle.size(); ++step) file << fmt::format("{} {:.17g}\n", step + 1, oracle[step].loss);
}

}  // namespace
}  // namespace orthant::golden_test

// One step in float32 and bfloat16 stays within rounding_bounds() of the same step in float64, for the loss, the norm
// and every gradient. The control is a batch with one sequence less.
#include "plan/rounding.h"
#include "runtime/verify.h"
#include "base/errors.h"
#include "tests/support/says.h"
#include "tests/support/plain_training.h"
#include "tests/support/tiny_run.h"

#include <gtest/gtest.h>

namespace orthant::precision_test {
namespace {

// Loss and gradients of the first step of one rank. Weights start as bfloat16 numbers, which every dtype holds exactly.
StepTrace first_step(const TinyRun& run, const std::vector<std::string>& overrides = {}) {
  const Plan plan = run.plan(1, overrides);
  StepTrace trace;
  run_ranks(1, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous);
    Session session(plan, run.data().train, comm);
    session.weights().initialize(3);
    session.weights().masters().copy_(session.weights().masters().to(at::kBFloat16));
    session.weights().publish();
    const StepResult result = session.gradients(1, {});
    trace = {.loss = result.loss, .norm = result.norm, .gradients = session.weights().gradients().clone()};
  });
  return trace;
}

class Precision : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Precision,
                         ::testing::Combine(::testing::Values("float32", "bfloat16"),
                                            ::testing::Values("model.dropout=0.0", "model.tie_word_embeddings=true",
                                                              "model.attention_bias=true", "model.mlp_bias=true",
                                                              "model.final_logit_softcapping=3",
                                                              "training.label_smoothing=0.1", "training.z_loss=0.01",
                                                              "model.num_hidden_layers=6",
                                                              "training.global_batch_size=32")));

TEST_P(Precision, OneStepIsWithinItsBoundOfFloat64) {
  const auto [dtype, key] = GetParam();
  const TinyRun run({key});
  const std::string narrow_key = fmt::format("training.dtype={}", dtype);
  const StepTrace exact = first_step(run), narrow = first_step(run, {narrow_key});
  const Plan plan = run.plan(1, {narrow_key});
  const double bound = rounding_bounds(plan).gradients;
  EXPECT_LE(relative_error(narrow.loss, exact.loss), bound);
  EXPECT_LE(relative_error(narrow.norm, exact.norm), bound);
  const NamedError worst = worst_parameter(plan, narrow.gradients, exact.gradients);
  EXPECT_LE(worst.error, bound) << worst.name;
  EXPECT_GT(worst.error, 0x1p-26) << "as good as float64: which dtype was it?";
  RecordProperty("worst", fmt::format("{:.2e} of {:.2e}, {}", worst.error, bound, worst.name));
}

TEST(PrecisionControl, OneSequenceLessIsBeyondEveryBound) {
  const TinyRun run;
  const Plan plan = run.plan(1);
  const StepTrace exact = first_step(run), fewer = first_step(run, {"training.global_batch_size=6"});
  const double error = worst_parameter(plan, fewer.gradients, exact.gradients).error;
  for (const char* dtype : {"float32", "bfloat16"}) {
    EXPECT_GT(error, rounding_bounds(run.plan(1, {fmt::format("training.dtype={}", dtype)})).gradients) << dtype;
  }
}

TEST(Bfloat16, LearnsAsFloat32Does) {
  // Over ten steps the losses stay within the bound of one step's loss, and both fall.
  const TinyRun run({"training.dtype=float32"});
  const auto wide = train_ranks(run.plan(1), run.data(), {.steps = 10}).front().steps;
  const Plan plan = run.plan(1, {"training.dtype=bfloat16"});
  const auto narrow = train_ranks(plan, run.data(), {.steps = 10}).front().steps;
  for (size_t i = 0; i < wide.size(); ++i) {
    EXPECT_LE(relative_error(narrow[i].loss, wide[i].loss), rounding_bounds(plan).gradients) << "step " << i + 1;
  }
  EXPECT_LT(narrow.back().loss, 0.95 * narrow.front().loss);
}

TEST(Precision, BoundsThatHideMistakesAreRefused) {
  const TinyRun run;
  const std::vector<std::string> many = {"training.global_batch_size=65536", "training.local_batch_size=64"};
  const auto plan_in = [&](std::vector<std::string> words, const char* dtype) {
    words.push_back(std::string("training.dtype=") + dtype);
    return run.plan(2, words);
  };
  std::vector<std::string> staged = many;
  staged.emplace_back("parallelism.pipeline_parallel_degree=2");
  for (const auto& words : {many, staged}) {
    const std::string error = message_of<ConfigError>([&] { check_bounds_detect_mistakes(plan_in(words, "float32")); });
    EXPECT_TRUE(says(error, {"training.dtype = \"float32\"", "1,048,576 tokens", "\"float64\"", "global_batch_size"}))
        << error;
  }
  EXPECT_NO_THROW(check_bounds_detect_mistakes(plan_in(many, "float64")));
  for (const char* dtype : {"float32", "bfloat16"}) EXPECT_NO_THROW(check_bounds_detect_mistakes(plan_in({}, dtype)));
}

}  // namespace
}  // namespace orthant::precision_test

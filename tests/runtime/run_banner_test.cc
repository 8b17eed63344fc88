// The contents of a run's banner and summary, from real plans and data.
#include "runtime/run_banner.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/tiny_run.h"

namespace orthant::run_banner_test {
namespace {

TEST(RunBanner, DescribesTheTokenizer) {
  const TinyRun run;
  Plan plan = run.plan(1);
  const auto data_with = [&](const char* tokenizer) {
    plan.config.data.tokenizer = tokenizer;
    return make_banner(plan, run.data(), {}).data;
  };
  EXPECT_TRUE(data_with("byte").ends_with(", byte tokenizer"));
  EXPECT_TRUE(data_with("train:8000").ends_with(", tokenizer of 8000 pieces, trained on this data"));
  EXPECT_TRUE(data_with("models/jargon.model").ends_with(", tokenizer jargon.model"));
}

TEST(RunBanner, Banner) {
  const TinyRun run;
  const Banner two = make_banner(run.plan(2), run.data(), {.warnings = {"scarce"}});
  EXPECT_EQ(two.mesh, "data 2");
  EXPECT_EQ(two.warnings, std::vector<std::string>{"scarce"});
  EXPECT_EQ(two.tokens, 12 * 7 * 16);
  EXPECT_TRUE(two.data.ends_with(" training tokens, byte tokenizer")) << two.data;
  const Plan pipeline =
      run.plan(2, {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=zb_h1"});
  EXPECT_EQ(make_banner(pipeline, run.data(), {}).mesh, "pipeline 2; zb_h1");
  for (const char* placed : {"algorithm_2", "redistribution"}) {
    const Plan stages = run.plan(
        2, {"parallelism.pipeline_parallel_degree=2", std::string("parallelism.vocabulary_parallel=") + placed});
    EXPECT_EQ(make_banner(stages, run.data(), {}).mesh, fmt::format("pipeline 2; 1f1b, vocabulary {}", placed));
  }
}

TEST(RunBanner, SummaryOfStepsAndValidations) {
  const TinyRun run;
  const Plan plan = run.plan(2);
  const auto step = [](int64_t number, double loss, double seconds) {
    StepMetrics m;
    m.step = number, m.loss = loss, m.step_seconds = seconds, m.tokens_per_second = 100 / seconds;
    m.communication_seconds = seconds / 4, m.peak_memory_bytes = number;
    return m;
  };
  const std::vector<StepMetrics> steps = {step(1, 5, 1), step(2, 4, 3), step(3, 3, 2)};
  const std::vector<ValidationMetrics> validations = {{1, 4.5, 2.0}, {2, 3.5, 1.5}, {3, 3.75, 1.75}};
  const Summary s = make_summary(plan, steps, validations);
  EXPECT_EQ(s.steps, 3);
  EXPECT_EQ(s.first_loss, 5);
  EXPECT_EQ(s.last_loss, 3);
  EXPECT_EQ(s.step_seconds_median, 2);
  EXPECT_EQ(s.tokens_per_second_median, 50);
  EXPECT_DOUBLE_EQ(s.communication_share, 0.25);
  EXPECT_EQ(s.best_validation_step, 2);
  EXPECT_EQ(s.best_bits_per_byte, 1.5);
  EXPECT_EQ(s.peak_memory_bytes, 3);
  EXPECT_EQ(s.memory_expected_bytes, plan.largest_memory_bytes());
  const double no_labels = std::numeric_limits<double>::quiet_NaN();
  const Summary some =
      make_summary(plan, std::vector{step(1, no_labels, 1), step(2, 4, 1), step(3, 3, 1), step(4, no_labels, 1)}, {});
  EXPECT_EQ(some.first_loss, 4);
  EXPECT_EQ(some.last_loss, 3);
  const Summary none = make_summary(plan, {}, {});
  EXPECT_EQ(none.steps, 0);
  EXPECT_EQ(none.best_validation_step, 0);
}

}  // namespace
}  // namespace orthant::run_banner_test

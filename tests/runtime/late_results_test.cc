// Where the device decides about the update of a step, and reports it during the next one, every step has the bits of
// the run whose host decides. On the CPU, the same code runs with the device's memory on the host.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/gpus.h"
#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/training_courses.h"

namespace orthant::late_results_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::string limit(double max_norm) { return fmt::format("training.max_norm={}", max_norm); }

struct Layout {
  std::string name;
  int ranks;
  Words keys;
};

std::vector<Layout> layouts() {
  const std::string data = "parallelism.data_parallel_degree=2";
  return {{"one rank", 1, {}},
          {"data 2, ZeRO 3", 2, {data, "parallelism.zero_stage=3"}},
          {"data 2, ZeRO 1", 2, {data, "parallelism.zero_stage=1"}},
          {"zb_v with a sharded vocabulary", 2, pipeline("zb_v", 2, {"parallelism.vocabulary_parallel=algorithm_2"})},
          {"1f1b, ring", 4, pipeline("1f1b", 2, {kWithRing})},
          {"2d", 4, grid(2, 2, 1).keys}};
}

/// Runs both ways and compares them. Returns the late ranks.
std::vector<RankCourse> run_both(const TinyRun& run, int ranks, const Words& keys, Training course,
                                 const std::string& what) {
  const Plan plan = run.plan(ranks, keys);
  const std::vector<RankCourse> at_once = train_on(plan, run.data(), course);
  course.reports_late = true;
  const std::vector<RankCourse> late = train_on(plan, run.data(), course);
  expect_same(late, at_once, what);
  for (size_t rank = 0; rank < late.size() && late[0].results.size() == static_cast<size_t>(course.steps); ++rank) {
    const Traffic planned = planned_traffic(plan, rank);  // also in a skipped step: the host does not know of it yet
    EXPECT_EQ(late[rank].traffic.calls, course.steps * planned.calls) << what;
    EXPECT_EQ(late[rank].traffic.bytes, course.steps * planned.bytes) << what;
  }
  return late;
}

// Steps that are not clipped, that are clipped by this norm or by the previous one, and that are skipped, by either
// law.
SWEEP_TEST(LateResults, HaveTheBitsOfResultsAtOnce) {
  for (const char* dtype : {"float64", "bfloat16"}) {
    const TinyRun run(with(kDeep, {kBatch[0], fmt::format("training.dtype={}", dtype)}));
    for (const auto& [name, ranks, keys] : sweep.of(layouts(), 3)) {
      if (dtype == std::string("bfloat16") && ranks > 2) continue;
      for (const Words& more : {Words{limit(100)},
                                {limit(100), "training.clip_by=previous_norm"},
                                {limit(0), "training.skip_above_norm=1e3", "training.on_nonfinite=skip"}}) {
        const Training course{.steps = 6, .injection = {0, {{2, 1e6}, {4, kInf}, {5, 1e6}}}, .skips = true};
        const std::vector<RankCourse> late = run_both(run, ranks, with(keys, more), course, name + ", " + more.back());
        ASSERT_EQ(late[0].results.size(), 6u);
        EXPECT_GT(late[0].results[1].norm, 1e3) << name;
        EXPECT_FALSE(std::isfinite(late[0].results[3].norm)) << name;
        EXPECT_LT(late[0].results[5].norm, 1e3) << name;
      }
    }
  }
}

// The control: with other injections, the weights differ.
TEST(LateResults, DependOnTheClippedStep) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  const Plan plan = run.plan(1, {limit(1)});
  const auto weights = [&](double factor) {
    return train_on(plan, run.data(), {.steps = 3, .injection = {0, {{2, factor}}}, .reports_late = true})[0].masters;
  };
  EXPECT_TRUE(weights(2).equal(weights(2)));
  EXPECT_FALSE(weights(2).equal(weights(1)));
}

// The run ends one step later, but names the tensor of the step that was not finite, and the weights do not change.
TEST(LateResults, NameTheTensorThatIsNotFinite) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  for (const auto& [name, ranks, keys] : layouts()) {
    const std::vector<RankCourse> late = run_both(run, ranks, keys, {.injection = {0, {{3, kInf}}}}, name);
    EXPECT_EQ(late[0].results.size(), 3u) << name;
    const auto names_gradient = [](const RankCourse& rank) { return rank.not_finite.starts_with("the gradient of "); };
    EXPECT_TRUE(std::ranges::any_of(late, names_gradient)) << name;
  }
}

TEST(LateResults, GoOnFromACheckpointAndFinalizeAtAnyStep) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  const Words keys = {limit(100), "training.clip_by=previous_norm", "training.on_nonfinite=skip"};
  const Plan plan = run.plan(1, keys);
  const Injection injection{0, {{2, 1e6}, {3, kInf}}};
  const std::vector<RankCourse> whole = train_on(plan, run.data(), {.steps = 6, .injection = injection, .skips = true});
  for (const int64_t every : {1, 2, 3}) {
    run_both(run, 1, keys, {.injection = injection, .finalize_every = every, .skips = true}, fmt::format("{}", every));
  }
  train_on(plan, run.data(), {.steps = 3, .injection = injection, .save = true, .skips = true, .reports_late = true});
  const auto rest = train_on(
      plan, run.data(),
      {.steps = 6, .resume_from = run.folder() + "/out/checkpoints/step-000003", .skips = true, .reports_late = true});
  EXPECT_TRUE(rest[0].masters.equal(whole[0].masters));
  EXPECT_TRUE(same_state(rest[0].optimizer_state, whole[0].optimizer_state));
}

// If every step is skipped, the weights keep their first bits. The control: without the injection, they change.
void expect_skipped_steps_to_change_no_bits(const char* device) {
  const TinyRun run(with(kDeep, {kBatch[0], "training.dtype=float32", fmt::format("run.device={}", device)}));
  const Plan plan = run.plan(1, {limit(1), "training.on_nonfinite=skip"});
  const auto course = [&](int64_t steps, const Injection& injection) {
    return train_on(plan, run.data(), {.steps = steps, .injection = injection, .skips = true, .reports_late = true})[0];
  };
  const at::Tensor first = course(0, {}).masters;
  const RankCourse skipped = course(3, {0, {{1, kInf}, {2, kInf}, {3, kInf}}});
  ASSERT_EQ(skipped.results.size(), 3u);
  for (const FinalResult& result : skipped.results) EXPECT_FALSE(std::isfinite(result.norm));
  EXPECT_TRUE(skipped.masters.equal(first));
  const RankCourse updated = course(3, {});
  for (const FinalResult& result : updated.results) EXPECT_TRUE(std::isfinite(result.norm));
  EXPECT_FALSE(updated.masters.equal(first));
}

TEST(LateResults, SkippedStepsChangeNoBits) { expect_skipped_steps_to_change_no_bits("cpu"); }

// The kernels, copies and events of a GPU.
TEST(LateResultsGpu, SkippedStepsChangeNoBits) {
  REQUIRE_GPU();
  expect_skipped_steps_to_change_no_bits("cuda");
}

}  // namespace
}  // namespace orthant::late_results_test

// Steps whose gradient norm is not finite are skipped: on every layout the weights are those of plain training in which
// the optimizer does not step there. Pipelines with post-validation are in post_validation_test.cc.
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/plain_training.h"
#include "tests/support/sweep.h"
#include "tests/support/zero_runs.h"

namespace orthant::skipped_steps_test {
namespace {

using zero_test::Layout;

constexpr int64_t kSteps = 4;
const std::vector<int64_t> kSkipped = {1, 3};

/// The last rank with sequences of the batch.
int rank_with_sequences(const Plan& plan) {
  int rank = plan.mesh.size() - 1;
  const auto is_idle = [](const Range& range) { return range.size() == 0; };
  while (std::ranges::all_of(plan.data_shard(rank).microbatches, is_idle)) --rank;
  return rank;
}

/// Returns a Course::prepare under which one rank's gradient of one matrix is NaN in the steps `skipped`.
auto nan_gradients(const Plan& plan, const std::vector<int64_t>& skipped) {
  const int on_rank = rank_with_sequences(plan);
  int64_t microbatches = 0;
  for (const Range& range : plan.data_shard(on_rank).microbatches) microbatches += range.size() > 0;
  return [=](Session& session, int rank) {
    if (rank != on_rank) return;
    Weights& weights = session.weights();
    int chosen = 0;
    const auto is_matrix = [&](int weight) {
      const ParameterInfo& info = weights.parameters()[weights.flat().members[static_cast<size_t>(weight)].first];
      return info.is_matrix() && info.shard_size() > 0;
    };
    while (!is_matrix(chosen)) ++chosen;
    const int64_t writes = microbatches * session.model().uses(weights.all()[static_cast<size_t>(chosen)]);
    weights.on_gradient = [=, inner = weights.on_gradient, written = int64_t{0}](const Weight& weight) mutable {
      if (weight.index == chosen && std::ranges::count(skipped, 1 + written++ / writes) > 0) {
        at::Tensor(weight.gradient).fill_(std::numeric_limits<double>::quiet_NaN());
      }
      inner(weight);
    };
  };
}

/// The layouts of the sharded runs, each without ZeRO and with a stage of it.
std::vector<Layout> cases() {
  std::vector<Layout> all;
  const auto stages = zero_test::kStages;
  for (const auto& [name, ranks, keys] : zero_test::layouts()) {
    all.push_back({name, ranks, keys});
    const auto& [stage, settings] = stages[all.size() / 2 % stages.size()];
    all.push_back({name + ", " + stage, ranks, with(keys, settings)});
  }
  all.push_back({"clipped by the previous norm", 2, zero_test::kClipped});
  all.push_back({"SGD, stage 1", 2, {"optimizer.name=sgd", zero_test::kStage1}});
  return all;
}

/// The largest relative error of a weight on any rank after any step; the oracle is plain training.
NamedError worst_weight(const Plan& plan, const std::vector<RankTrace>& ranks, const std::vector<StepTrace>& oracle) {
  NamedError worst;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (size_t step = 0; step < oracle.size(); ++step) {
      const NamedError error =
          worst_parameter(plan, ranks[rank].steps[step].weights, oracle[step].weights, static_cast<int>(rank));
      if (!(error.error <= worst.error)) worst = {error.error, fmt::format("{}, step {}", error.name, step + 1)};
    }
  }
  return worst;
}

SWEEP_TEST(SkippedSteps, EveryLayoutEqualsPlainTrainingWithoutTheirUpdates) {
  for (const auto& [name, ranks, keys] : sweep.of(cases(), 6)) {
    SCOPED_TRACE(name);
    Words of_model = keys;  // and of the optimizer and the batch
    std::erase_if(of_model, [](const std::string& key) { return key.starts_with("parallelism."); });
    const TinyRun run(of_model);
    const Plan plan = run.plan(ranks, keys);
    const auto oracle = train_plain(run.plan(1), run.data(), kSteps, kSkipped);
    const auto have = train_ranks(plan, run.data(), {.steps = kSteps, .prepare = nan_gradients(plan, kSkipped)});
    for (const RankTrace& rank : have) {
      for (size_t step = 0; step < rank.steps.size(); ++step) {
        const bool skipped = std::ranges::count(kSkipped, static_cast<int64_t>(step) + 1) > 0;
        EXPECT_EQ(std::isfinite(rank.steps[step].norm), !skipped) << step + 1;
        EXPECT_LT(std::abs(rank.steps[step].loss - oracle[step].loss), 1e-10 * oracle[step].loss) << step + 1;
        if (!skipped || step == 0) continue;
        EXPECT_TRUE(rank.steps[step].weights.equal(rank.steps[step - 1].weights)) << step + 1;
      }
    }
    const NamedError worst = worst_weight(plan, have, oracle);
    EXPECT_LT(worst.error, 1e-10) << worst.name;
  }
}

// The controls: the comparison sees an update that is not left out, and a count of updates that is off by one.
TEST(SkippedSteps, TheOracleSeesEachUpdateAndTheirNumber) {
  const TinyRun run;
  const Plan plan = run.plan(2);
  const Course course{.steps = kSteps, .prepare = nan_gradients(plan, kSkipped)};
  const auto have = train_ranks(plan, run.data(), course);
  EXPECT_GT(worst_weight(plan, have, train_plain(run.plan(1), run.data(), kSteps, {1})).error, 1e-6);
  Course miscounted = course;
  miscounted.prepare = [&](Session& session, int rank) {
    course.prepare(session, rank);
    session.set_skipped_steps(-1);
  };
  const auto oracle = train_plain(run.plan(1), run.data(), kSteps, kSkipped);
  EXPECT_GT(worst_weight(plan, train_ranks(plan, run.data(), miscounted), oracle).error, 1e-6);
}

// With one microbatch in a step, all stages of ZeRO store the same bits.
TEST(SkippedSteps, StagesOfZeroHaveTheSameBits) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TinyRun run({fmt::format("training.dtype={}", dtype), "training.local_batch_size=7"});
    const auto files = [&](const Words& keys, const std::vector<int64_t>& skipped) {
      const Plan plan = run.plan(2, keys);
      return zero_test::trained(plan, run, {.steps = kSteps, .prepare = nan_gradients(plan, skipped)}).files;
    };
    const auto want = files({}, kSkipped);
    EXPECT_GE(want.size(), 2u);
    EXPECT_FALSE(want == files({}, {1}));  // the control
    EXPECT_TRUE(want == files({zero_test::kStage1}, kSkipped)) << dtype;
    for (const auto& [stage, keys] : zero_test::kStages) EXPECT_TRUE(want == files(keys, kSkipped)) << dtype << stage;
  }
}

// A checkpoint has the number of skipped steps, so that the resumed optimizer has the right bias correction.
TEST(SkippedSteps, AResumedRunCountsThoseBeforeIt) {
  const TinyRun run;
  const Plan plan = run.plan(2, {"parallelism.zero_stage=1"});
  const auto whole = train_ranks(plan, run.data(), {.steps = 5, .prepare = nan_gradients(plan, {2, 3})});
  train_ranks(plan, run.data(), {.steps = 3, .save = true, .prepare = nan_gradients(plan, {2, 3})});
  const Course rest{.steps = 5, .resume_from = run.folder() + "/out/checkpoints/step-000003"};
  EXPECT_TRUE(train_ranks(plan, run.data(), rest)[0].last().weights.equal(whole[0].last().weights));
  Course uncounted = rest;  // the control
  uncounted.prepare = [](Session& session, int) { session.set_skipped_steps(0); };
  EXPECT_FALSE(train_ranks(plan, run.data(), uncounted)[0].last().weights.equal(whole[0].last().weights));
}

}  // namespace
}  // namespace orthant::skipped_steps_test

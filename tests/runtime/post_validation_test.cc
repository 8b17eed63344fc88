// Post-validation of the optimizer's step gives every bit of the synchronous step, whatever the gradient norm is. If no
// step has to be undone, it sends only the planned bytes.
#include "runtime/post_validation.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/pipelines.h"
#include "tests/support/says.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"
#include "tests/support/training_courses.h"

namespace orthant::post_validation_test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const std::string kPost = "parallelism.pipeline_parallel_post_validation=true";

/// Whether a rank has sent more than the planned bytes of these steps, because forwards were run again.
bool sent_again(const Plan& plan, const std::vector<RankCourse>& ranks, int64_t steps) {
  bool again = false;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Traffic planned = planned_traffic(plan, rank), have = ranks[rank].traffic;
    EXPECT_GE(have.calls, steps * planned.calls);
    again |= have.calls > steps * planned.calls;
    if (have.calls == steps * planned.calls) {
      EXPECT_EQ(have.bytes, steps * planned.bytes);
    }
  }
  return again;
}

std::string limit(double max_norm) { return fmt::format("training.max_norm={}", max_norm); }

/// The plan and the traces with post-validation. run_both() has compared them with the synchronous run.
struct Both {
  Plan plan;
  std::vector<RankCourse> ranks;
};
Both run_both(const TinyRun& run, int ranks, const Words& keys, const Training& course, const std::string& what) {
  const Plan plan = run.plan(ranks, with(keys, {kPost}));
  Both both{plan, train_on(plan, run.data(), course)};
  expect_same(both.ranks, train_on(run.plan(ranks, keys), run.data(), course), what);
  return both;
}

struct Mesh3 {
  std::string name;
  int ranks;
  Words keys;
};

std::vector<Mesh3> meshes() {
  const std::string data = "parallelism.data_parallel_degree=2";
  return {{"zb_h2", 4, pipeline("zb_h2", 4)},
          {"zb_v", 3, pipeline("zb_v", 3)},
          {"1f1b, data 2", 4, pipeline("1f1b", 2, {data})},
          {"interleaved", 2, pipeline("interleaved_1f1b", 2)},
          {"v_half, tied", 2, pipeline("v_half", 2, {"model.tie_word_embeddings=true"})},
          {"zb_h1, tied", 2, pipeline("zb_h1", 2, {"model.tie_word_embeddings=true"})},
          {"gpipe, ring", 4, pipeline("gpipe", 2, {kWithRing})},
          {"zb_h2, data 2, ZeRO 1", 4, pipeline("zb_h2", 2, {data, "parallelism.zero_stage=1"})}};
}

SWEEP_TEST(PostValidation, ANormThatOnlyTheLastRankSeesIsUndone) {
  for (const char* dtype : {"float64", "float32", "bfloat16"}) {
    const TinyRun run(with(kDeep, {kBatch[0], fmt::format("training.dtype={}", dtype)}));
    for (const auto& [name, ranks, keys] : sweep.of(meshes(), 2)) {
      const bool in_all_dtypes = name == "zb_h2" || name == "1f1b, data 2" || name.ends_with("ZeRO 1");
      if (!in_all_dtypes && dtype != std::string("float64")) continue;
      const int last = run.plan(ranks, keys).mesh.axis_size("pipeline") - 1;
      // Two consecutive steps and the last one exceed the limit. The first step is waited for in any case.
      const Training course{.steps = 7, .injection = {last, {{3, 1e6}, {4, 1e6}, {7, 1e6}}}};
      const Both both = run_both(run, ranks, with(keys, {limit(100)}), course, name + ", " + dtype);
      const std::vector<FinalResult>& results = both.ranks[0].results;
      ASSERT_EQ(results.size(), 7u);
      for (size_t step = 0; step < results.size(); ++step)
        EXPECT_EQ(results[step].norm > 100, step == 2 || step == 3 || step == 6) << name << ": " << results[step].norm;
      EXPECT_TRUE(sent_again(both.plan, both.ranks, 7)) << name;
    }
  }
}

// Pipelines whose data ranks shard the states, in one copy and in two.
std::vector<Mesh3> sharded_meshes() {
  const std::string data = "parallelism.data_parallel_degree=2", four = "parallelism.data_parallel_degree=4";
  std::vector<Mesh3> all;
  for (const auto& [name, stage] : kStages2And3) {
    all.push_back({"zb_h2, data 2, " + name, 4, pipeline("zb_h2", 2, with(stage, {data}))});
  }
  for (const auto& [name, stage] : kStages2And3) {
    all.push_back({"1f1b, data 4 in two copies, " + name, 8, pipeline("1f1b", 2, with(stage, {four, kTwoCopies}))});
    all.push_back({"interleaved, data 2, " + name, 4, pipeline("interleaved_1f1b", 2, with(stage, {data}))});
  }
  all.push_back({"zb_h2, data 2 in two copies", 4,
                 pipeline("zb_h2", 2, {data, kTwoCopies, "parallelism.zero_stage=1"})});
  return all;
}

// An undone step drops the weights that the next step's first forwards have gathered. It is done again with the
// gradients that each rank owns, before these forwards run again.
SWEEP_TEST(PostValidation, AStepOfShardedStatesIsUndone) {
  for (const char* dtype : {"float64", "bfloat16"}) {
    const TinyRun run({"model.num_hidden_layers=4", "training.local_batch_size=1", kBatch[0],
                       fmt::format("training.dtype={}", dtype)});
    for (const auto& [name, ranks, keys] : sweep.of(sharded_meshes(), 7)) {
      const std::string what = name + ", " + dtype;
      const Training course{.steps = 5, .injection = {1, {{3, 1e6}, {5, 1e6}}}};
      const Words limited = with(keys, {limit(100)});
      const Both both = run_both(run, ranks, limited, course, what);
      ASSERT_EQ(both.ranks[0].results.size(), 5u) << what;
      for (size_t step = 0; step < 5; ++step) {
        EXPECT_EQ(both.ranks[0].results[step].norm > 100, step == 2 || step == 4) << what << ", step " << step + 1;
      }
      EXPECT_TRUE(sent_again(both.plan, both.ranks, course.steps)) << what;
      // The row with FINALIZE has forwards before it, for which weights are gathered.
      const std::vector<Action>& row = both.plan.row(0);
      const auto finalize = std::ranges::find(row, ActionKind::FINALIZE, &Action::kind);
      const auto gathers = std::count_if(row.begin(), finalize,
                                         [](const Action& action) { return action.kind == ActionKind::UNSHARD; });
      EXPECT_EQ(gathers > 0, both.plan.shards_weights()) << what;
      EXPECT_NE(finalize, row.end()) << what;
      if (name != sharded_meshes().front().name) continue;
      // The control: the steps that are undone would otherwise have left other weights.
      const auto kept = train_on(run.plan(ranks, with(keys, {limit(1e9)})), run.data(), course);
      EXPECT_FALSE(kept[0].masters.equal(both.ranks[0].masters)) << what;
    }
  }
}

TEST(PostValidation, UndoesSgd) {
  for (const char* momentum : {"0.9", "0"}) {
    for (const char* dtype : {"float64", "bfloat16"}) {
      const TinyRun run(with(kDeep, {kBatch[0], fmt::format("training.dtype={}", dtype), "optimizer.name=sgd",
                                     fmt::format("optimizer.momentum={}", momentum)}));
      const Training course{.injection = {1, {{3, 1e6}, {6, 1e6}}}};
      const Both both = run_both(run, 2, pipeline("zb_h2", 2, {limit(100)}), course, dtype);
      EXPECT_TRUE(sent_again(both.plan, both.ranks, course.steps)) << dtype;
    }
  }
}

TEST(PostValidation, ANormThatRanksOnTheWaySee) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  for (const int seen_by : {0, 1, 2}) {
    const Training course{.injection = {seen_by, {{2, 1e6}, {5, 1e6}}}};
    const Both both = run_both(run, 4, pipeline("zb_h2", 4, {limit(100)}), course, fmt::format("rank {}", seen_by));
    EXPECT_TRUE(sent_again(both.plan, both.ranks, course.steps));
  }
}

SWEEP_TEST(PostValidation, AnInfinityStopsAsTheSynchronousStepDoes) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  for (const auto& [name, ranks, keys] : sweep.of(meshes(), 2)) {
    const int last = run.plan(ranks, keys).mesh.axis_size("pipeline") - 1;
    for (const double max_norm : {100.0, 0.0}) {
      const Training course{.injection = {last, {{4, kInf}}}};
      const Both both = run_both(run, ranks, with(keys, {limit(max_norm)}), course, name);
      bool found = false;
      for (const RankCourse& rank : both.ranks) {
        EXPECT_EQ(rank.results.size(), 4u) << name;
        found |= says(rank.not_finite, {"the gradient of"});
      }
      EXPECT_TRUE(found) << name;
    }
  }
}

// A skipped step changes no bit of weights and optimizer state, also where ranks have updated before they know that it
// is not finite.
SWEEP_TEST(PostValidation, AStepThatIsNotFiniteIsSkippedAsTheSynchronousStepIs) {
  std::vector<Mesh3> all = meshes();
  for (const Mesh3& mesh : sharded_meshes()) all.push_back(mesh);
  const TinyRun run({"model.num_hidden_layers=8", "training.local_batch_size=1", kBatch[0]});
  for (const auto& [name, ranks, keys] : sweep.of(all, 3)) {
    const int last = run.plan(ranks, keys).mesh.axis_size("pipeline") - 1;
    for (const double max_norm : {100.0, 0.0}) {
      Training course{.steps = 7, .injection = {last, {{1, kInf}, {3, kInf}, {4, kInf}, {7, kInf}}}, .skips = true};
      const Words limited = with(keys, {limit(max_norm)});
      const Both both = run_both(run, ranks, limited, course, name);
      ASSERT_EQ(both.ranks[0].results.size(), 7u) << name;
      for (size_t step = 0; step < 7; ++step) {
        const bool skipped = step == 0 || step == 2 || step == 3 || step == 6;
        EXPECT_EQ(std::isfinite(both.ranks[0].results[step].norm), !skipped) << name << ", step " << step + 1;
      }
      for (const RankCourse& rank : both.ranks) EXPECT_TRUE(rank.masters.isfinite().all().item<bool>()) << name;
      course.injection = {};  // the control: with all updates, the weights are others
      const auto updated = train_on(run.plan(ranks, limited), run.data(), course);
      EXPECT_FALSE(updated[0].masters.equal(both.ranks[0].masters)) << name;
    }
  }
}

// The norm by which the next step is clipped, and the count of updates, are those of the last update.
TEST(PostValidation, ASkippedStepLeavesTheLastNormAndTheNumberOfUpdates) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  const Plan plan = run.plan(2, pipeline("zb_h2", 2, {limit(100), kPost}));
  run_ranks(2, [&](const Rendezvous& rendezvous, int rank) {
    Comm comm(plan.mesh, rank, rendezvous, {.transport = plan.config.run.transport, .timeout_s = 60});
    Session session(plan, run.data().train, comm);
    session.weights().initialize(1);
    int64_t step = 0;
    inject(session, plan, rank, {1, {{3, kInf}}}, step);
    std::vector<double> norms;
    const auto on_final_result = [&](const StepResult& result) { norms.push_back(result.norm); };
    while (++step <= 3) session.advance(step, {}, on_final_result);
    session.finalize_pending_step(on_final_result);
    ASSERT_EQ(norms.size(), 3u);
    EXPECT_FALSE(std::isfinite(norms[2]));
    EXPECT_EQ(session.last_norm(), norms[1]) << rank;
    EXPECT_EQ(session.skipped_steps(), 1) << rank;
  });
}

SWEEP_TEST(PostValidation, SendsWhatThePlanSaysWhereEveryStepIsClippedOrNone) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  std::vector<Mesh3> all = meshes();
  all.push_back({"2d", 8, with(pipeline("zb_h2", 2), grid(2, 2, 1).keys)});
  for (const auto& [name, ranks, keys] : sweep.of(all, 2))
    for (const double max_norm : {1e-4, 1e6, 0.0}) {
      if (max_norm == 0 && name != "zb_v") continue;
      const Training course{.steps = 4};
      const Both both = run_both(run, ranks, with(keys, {limit(max_norm)}), course, name);
      EXPECT_FALSE(sent_again(both.plan, both.ranks, course.steps)) << name << ", max_norm " << max_norm;
    }
}

TEST(PostValidation, RanksWithoutASequenceTakePart) {
  const TinyRun run({"training.global_batch_size=1", "training.local_batch_size=1", "model.num_hidden_layers=4"});
  const Words keys = pipeline("1f1b", 2, {"parallelism.data_parallel_degree=2", limit(100)});
  const Both both = run_both(run, 4, keys, {.injection = {1, {{3, 1e6}}}}, "one sequence for two");
  EXPECT_GT(both.ranks[0].results[2].norm, 100);
}

TEST(PostValidation, GoesOnFromACheckpoint) {
  for (const char* dtype : {"float64", "bfloat16"}) {
    const TinyRun run(with(kDeep, {kBatch[0], fmt::format("training.dtype={}", dtype)}));
    const Words keys = pipeline("zb_h2", 2, {limit(100)});
    const Plan plan = run.plan(2, with(keys, {kPost}));
    const Injection injection{1, {{3, 1e6}}};  // the last step before the checkpoint, undone before it is saved
    const auto whole = train_on(run.plan(2, keys), run.data(), {.steps = 6, .injection = injection});
    train_on(plan, run.data(), {.steps = 3, .injection = injection, .save = true});
    const auto rest = train_on(plan, run.data(),
                               {.steps = 6, .resume_from = run.folder() + "/out/checkpoints/step-000003"});
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(rest[rank].masters.equal(whole[rank].masters)) << dtype;
      EXPECT_TRUE(same_state(rest[rank].optimizer_state, whole[rank].optimizer_state)) << dtype;
    }
  }
}

TEST(PostValidation, SettledAtAnyStepIsTheSame) {
  const TinyRun run(with(kDeep, {kBatch[0]}));
  const Words keys = pipeline("zb_v", 2, {limit(100)});
  for (const int64_t every : {1, 2, 3}) {
    const Training course{.injection = {1, {{2, 1e6}, {3, 1e6}, {6, 1e6}}}, .finalize_every = every};
    run_both(run, 2, keys, course, fmt::format("finalized every {} steps", every));
  }
}

TEST(PostValidation, OfTheProgramWritesWhatTheSynchronousStepWrites) {
  const TinyRun run({"model.num_hidden_layers=4"});
  Words keys = {"--run.ranks=2", "--parallelism.pipeline_parallel_degree=2",
                      "--parallelism.pipeline_parallel_schedule=zb_h2", "--checkpoint.interval=5",
                      "--checkpoint.keep_latest_k=0", "--validation.freq=4", "--training.steps=12"};
  std::vector<double> norms;
  for (const StepMetrics& step : read_metrics(train(run, "free", with(keys, {"--training.max_norm=0"})).folder +
                                              "/metrics.jsonl").steps)
    norms.push_back(step.grad_norm);
  std::ranges::sort(norms);
  const double limit = (norms[5] + norms[6]) / 2;  // about half of the steps are clipped
  keys.push_back(fmt::format("--training.max_norm={}", limit));
  const Trained plain = train(run, "plain", keys), post = train(run, "post", with(keys, {"--" + kPost}));
  const Metrics want = read_metrics(plain.folder + "/metrics.jsonl");
  const Metrics have = read_metrics(post.folder + "/metrics.jsonl");
  ASSERT_EQ(have.steps.size(), want.steps.size());
  ASSERT_EQ(have.validations.size(), want.validations.size());
  int clipped = 0;
  for (size_t i = 0; i < want.steps.size(); ++i) {
    EXPECT_EQ(have.steps[i].step, want.steps[i].step);
    EXPECT_EQ(have.steps[i].loss, want.steps[i].loss);
    EXPECT_EQ(have.steps[i].grad_norm, want.steps[i].grad_norm);
    EXPECT_EQ(have.steps[i].tokens, want.steps[i].tokens);
    clipped += want.steps[i].grad_norm > limit;
  }
  EXPECT_TRUE(clipped > 0 && clipped < 12) << clipped;
  for (size_t i = 0; i < want.validations.size(); ++i)
    EXPECT_EQ(have.validations[i].validation_loss, want.validations[i].validation_loss);
  for (const int64_t step : {5, 10, 12}) EXPECT_EQ(bytes_of(post, step), bytes_of(plain, step)) << step;
}

}  // namespace
}  // namespace orthant::post_validation_test

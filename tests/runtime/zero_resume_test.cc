// A checkpoint of one setting of ZeRO continues under another: with other copies and shard degrees, on pipelines, with
// tied tables, and with several microbatches. The continued run is compared with an uninterrupted run of its own
// setting. Where both settings add gradients in the same order, every bit is equal. Otherwise the bound is that of
// docs/numerics.md for a run that is resumed with another order of sums: 1e-10 in float64.
#include <gtest/gtest.h>

#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"
#include "tests/support/sharded_runs.h"

namespace orthant::zero_resume_test {
namespace {

struct Setting {
  std::string name;
  int ranks;
  Words keys;
  std::string sums;  // settings with the same text add gradients in the same order
};

std::vector<Setting> settings() {
  const std::string two = "parallelism.data_parallel_degree=2", stage_1 = "parallelism.zero_stage=1",
                    stage_2 = "parallelism.zero_stage=2", stage_3 = "parallelism.zero_stage=3";
  const Words step = {stage_3}, never = {stage_3, "parallelism.zero_reshard=never"},
              microbatch = {stage_3, "parallelism.zero_reshard=microbatch"};
  const auto copies = [](int count) { return fmt::format("parallelism.data_parallel_replicate_degree={}", count); };
  return {{"data 4, stage 3, step", 4, step, "4 ranks"},
          {"data 4", 4, {}, "4 ranks"},
          {"data 4 in two copies, stage 3, microbatch", 4, with(microbatch, {copies(2)}), "2 x 2 ranks"},
          {"data 4 in two copies, stage 2", 4, {stage_2, copies(2)}, "2 x 2 ranks"},
          {"data 6 in three copies, stage 3, step", 6, with(step, {copies(3)}), "2 x 3 ranks"},
          {"data 4 in four copies, stage 1", 4, {stage_1, copies(4)}, "4 copies"},
          {"1f1b, data 2, stage 3, step", 4, pipeline("1f1b", 2, with(step, {two})), "2 ranks"},
          {"zb_v, data 2, stage 3, step", 4, pipeline("zb_v", 2, with(step, {two})), "2 ranks"},
          {"1f1b, data 2, stage 1", 4, pipeline("1f1b", 2, {two, stage_1}), "2 ranks"},
          // In zb_v, a reduction of the head may have the gradients of two microbatches: its forwards write them, and
          // the second may run before the W of the first, which is followed by the reduction.
          {"zb_v, data 2, stage 2", 4, pipeline("zb_v", 2, {two, stage_2}), "2 ranks, zb_v"},
          {"1f1b, data 2, stage 3, never", 4, pipeline("1f1b", 2, with(never, {two})), "2 ranks, 1f1b"},
          {"1f1b, data 4 in two copies, stage 3, microbatch", 8,
           pipeline("1f1b", 2, with(microbatch, {"parallelism.data_parallel_degree=4", copies(2)})),
           "2 x 2 ranks, pipeline"},
          {"data 2, stage 3, microbatch", 2, microbatch, "2 ranks without pipeline"}};
}

const Words kRun = {"training.dtype=float64", "model.num_hidden_layers=4", "training.global_batch_size=8",
                    "training.local_batch_size=1"};
constexpr int64_t kSaved = 2, kSteps = 4;

/// Continues the run's checkpoint of step 2.
std::vector<RankTrace> resumed(const TinyRun& run, const Plan& plan,
                               std::function<void(Session&, int)> prepare = {}) {
  return train_ranks(plan, run.data(),
                     {.steps = kSteps,
                      .resume_from = fmt::format("{}/checkpoints/step-{:06}", plan.config.job.dump_folder, kSaved),
                      .prepare = std::move(prepare)});
}

/// The first difference between a continued run and the last steps of an uninterrupted one, optimizer state included.
std::string first_difference_after(const Plan& plan, const std::vector<RankTrace>& have, std::vector<RankTrace> want,
                                   bool exact) {
  for (RankTrace& rank : want) rank.steps.erase(rank.steps.begin(), rank.steps.begin() + kSaved);
  RunBounds bounds;
  if (!exact) bounds = {1e-10, 1e-10, 1e-10, 1e-10, float64_bounds(plan).rest};
  const std::string difference = first_difference(plan, have, plan, want, bounds);
  if (!difference.empty()) return difference;
  for (size_t rank = 0; rank < want.size(); ++rank) {
    for (size_t i = 0; i < want[rank].optimizer_state.size(); ++i) {
      const double error = relative_error(have[rank].optimizer_state[i], want[rank].optimizer_state[i]);
      if (!(error <= bounds.weights)) return fmt::format("state {} on rank {} differs by {:.2g}", i, rank, error);
    }
  }
  return "";
}

// Each setting continues the checkpoint of the one before it in the list, and the first that of the last.
SWEEP_TEST(ZeroResume, UnderAnotherSettingIsTheUninterruptedRun) {
  for (const Words& more : {Words{}, Words{"model.tie_word_embeddings=true"}}) {
    const TinyRun run(with(kRun, more));
    std::vector<std::pair<Setting, Setting>> pairs;
    const std::vector<Setting> all = settings();
    for (size_t i = 0; i < all.size(); ++i) pairs.emplace_back(all[i], all[(i + 1) % all.size()]);
    for (const auto& [before, after] : sweep.of(pairs, 5)) {
      const Plan plan = run.plan(after.ranks, after.keys);
      train_ranks(run.plan(before.ranks, before.keys), run.data(), {.steps = kSaved, .save = true});
      const auto have = resumed(run, plan), want = train_ranks(plan, run.data(), {.steps = kSteps});
      EXPECT_EQ(first_difference_after(plan, have, want, before.sums == after.sums), "")
          << before.name << " to " << after.name << fmt::format(", {}", fmt::join(more, ""));
    }
  }
}

// The control: moments that one rank has not read from the checkpoint, or has read wrongly, are seen within the bound.
TEST(ZeroResume, AWrongMomentIsSeen) {
  const TinyRun run(kRun);
  const std::vector<Setting> all = settings();
  train_ranks(run.plan(all[1].ranks, all[1].keys), run.data(), {.steps = kSaved, .save = true});
  for (const size_t setting : {0u, 3u, 7u}) {
    const Plan plan = run.plan(all[setting].ranks, all[setting].keys);
    const auto want = train_ranks(plan, run.data(), {.steps = kSteps});
    for (const double factor : {1.0, 0.0, 1.001}) {
      const auto have = resumed(run, plan, [&](Session& session, int rank) {
        if (rank == 1) session.optimizer().state().front().flat.mul_(factor);
      });
      EXPECT_EQ(first_difference_after(plan, have, want, false).empty(), factor == 1) << all[setting].name << factor;
    }
  }
}

}  // namespace
}  // namespace orthant::zero_resume_test

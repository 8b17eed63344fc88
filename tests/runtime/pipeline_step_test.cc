// Steps of pipelines equal one rank's together with other features: microbatches of two sizes, attention within
// documents and windows, and Linformer. Five steps stay within the tighter bound of the published check.
#include <gtest/gtest.h>

#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"

namespace orthant::pipeline_step_test {
namespace {

const std::string kDataOfTwo = "parallelism.data_parallel_degree=2";

TEST(PipelineStep, MicrobatchesOfTwoSizes) {
  const TinyRun run({"model.num_hidden_layers=8"});  // seven sequences, two per microbatch
  const auto one = train_ranks(run.plan(1), run.data());
  for (const auto& [ranks, words] : std::vector<std::pair<int, Words>>{{4, pipeline("zb_v", 2, {kDataOfTwo})},
                                                                       {4, pipeline("zb_h1", 2, {kDataOfTwo})},
                                                                       {3, pipeline("v_half", 3)},
                                                                       {4, pipeline("dual_pipe_v", 4)}}) {
    const Plan plan = run.plan(ranks, words);
    EXPECT_EQ(microbatch_sizes(plan.data_shards.back()).size(), 2u);
    expect_equal(plan, train_ranks(plan, run.data()), one[0], words[1] + " on " + plan.mesh_text());
  }
}

TEST(PipelineStep, SplitBackwardsOfEveryAttention) {
  const std::string kMasked = "model.objective=masked";
  const std::string kDocuments = "data.mask_documents=true", kCut = "data.long_documents=cut";
  for (const Words& model : {Words{kDocuments, kCut}, Words{"model.sliding_window=5"},
                             Words{kMasked, "model.linformer_length=5"}, Words{kMasked, kDocuments, kCut}}) {
    Words keys = kDeep;
    keys.insert(keys.end(), model.begin(), model.end());
    const TinyRun run(keys);
    const auto one = train_ranks(run.plan(1), run.data());
    for (const char* schedule : {"zb_h1", "zb_v", "v_min"}) {
      const Plan plan = run.plan(2, pipeline(schedule, 2));
      expect_equal(plan, train_ranks(plan, run.data()), one[0], schedule + (", " + model.back()));
    }
  }
}

// Four ranks, eight microbatches and AdamW, with the vocabulary on the outer stages or sharded over all ranks. Every
// algorithm of the output layer adds the same numbers, and all schedules add them in the same order.
SWEEP_TEST(PipelineStep, FiveStepsOfEverySchedule) {
  Words keys = kDeep;
  keys.insert(keys.end(), {"training.global_batch_size=8", "model.vocab_size=1003"});
  const TinyRun run(keys);
  const StepTrace one = put_together(run.plan(1), train_ranks(run.plan(1), run.data(), {.steps = 5}), 4);
  for (const char* order : {"none", "naive", "algorithm_1", "algorithm_2"}) {
    std::vector<StepTrace> first;
    for (const std::string& schedule : sweep.of(kEverySchedule, 3)) {
      const Plan plan = run.plan(4, cut(order, schedule, 4));
      EXPECT_EQ(plan.data_shards[0].microbatches.size(), 8u);
      const StepTrace whole = put_together(plan, train_ranks(plan, run.data(), {.steps = 5}), 4);
      const std::string what = schedule + ", " + order;
      EXPECT_LT(relative_error(whole.weights, one.weights), 1e-11) << what;
      if (first.empty()) first.push_back(whole);
      expect_same_bits(whole, first[0], what);
    }
  }
}

}  // namespace
}  // namespace orthant::pipeline_step_test

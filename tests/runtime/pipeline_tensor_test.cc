// Pipelines whose stages are tensor meshes: the numbers equal one rank's, all schedules give the same bits, and the
// planned bytes are sent.
#include <gtest/gtest.h>

#include "tests/support/pipelines.h"
#include "tests/support/sweep.h"
#include "tests/support/tensor_cuts.h"

namespace orthant::pipeline_tensor_test {
namespace {

// Rows and depth shard the batch. If there are four such shards, each has four microbatches.
const TinyRun& deep_run() {
  static const TinyRun run(
      {"model.num_hidden_layers=4", "training.local_batch_size=1", "training.global_batch_size=16"});
  return run;
}

constexpr int kStages = 2;

SWEEP_TEST(PipelineOfTensorMeshes, EqualsOneRankAndNoScheduleChangesABit) {
  const auto one = train_ranks(deep_run().plan(1), deep_run().data(), {.steps = 2});
  for (const TensorCut& cut : sweep.of(
           std::vector<TensorCut>{grid(1, 2, 1, {}, kStages), grid(2, 2, 1, {}, kStages), grid(2, 2, 2, {}, kStages),
                                  one_dimension(2, {}, kStages), grid(2, 2, 1, {kSumma}, kStages)},
           2)) {
    std::vector<StepTrace> first;
    for (const char* schedule : {"1f1b", "zb_h1", "zb_v", "v_min"}) {
      const Plan plan = deep_run().plan(cut.ranks, pipeline(schedule, kStages, cut.keys));
      const std::string what = fmt::format("{}, {}", schedule, cut.name());
      const auto traces = train_ranks(plan, deep_run().data(), {.steps = 2});
      expect_equal(plan, traces, one[0], what);
      for (size_t step = 0; step < 2; ++step) {
        const StepTrace whole = put_together(plan, traces, step);
        if (first.size() == step) first.push_back(whole);
        expect_same_bits(whole, first[step], what);
      }
    }
  }
}

SWEEP_TEST(PipelineOfTensorMeshes, ComposesWithTheRest) {
  const Words tied = {"model.tie_word_embeddings=true", "model.dropout=0.1"};
  const auto one = train_ranks(deep_run().plan(1, tied), deep_run().data(), {.steps = 2});
  for (const TensorCut& cut :
       sweep.of(std::vector<TensorCut>{grid(1, 2, 1, {"parallelism.data_parallel_degree=2"}, 2 * kStages),
                                       grid(2, 1, 2, {kRecompute}, kStages), one_dimension(2, {kWithRing}, 2 * kStages),
                                       one_dimension(2, {kWithUlysses, kNoSequence}, 2 * kStages)},
                2)) {
    Words words = cut.keys;
    words.insert(words.end(), tied.begin(), tied.end());
    const Plan plan = deep_run().plan(cut.ranks, pipeline("zb_v", kStages, words));
    expect_equal(plan, train_ranks(plan, deep_run().data(), {.steps = 2}), one[0], cut.name());
  }
}

}  // namespace
}  // namespace orthant::pipeline_tensor_test

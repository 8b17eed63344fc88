// Plans of runs that keep optimizer state or saved activations in host memory: the device loses the bytes that the host
// gains, except for those in use, and every byte is copied there and back once a step.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "advice/advised_plan.h"
#include "advice/explain.h"
#include "tests/support/says.h"
#include "tests/support/words.h"

namespace orthant::offload_plan_test {
namespace {

Plan plan_of(int ranks, int layers, const Words& more) {
  Words words = {"run.device=cuda", "model.hidden_size=128", "model.intermediate_size=384",
                 "model.num_attention_heads=8", "training.seq_len=64", "training.local_batch_size=2",
                 fmt::format("training.global_batch_size={}", 8), fmt::format("run.ranks={}", ranks),
                 fmt::format("model.num_hidden_layers={}", layers)};
  words.insert(words.end(), more.begin(), more.end());
  return make_plan(parse_config("", "run.toml", words), {.ranks = ranks, .vocab_size = 512});
}

TEST(OffloadPlan, MovesTheStateOfTheOptimizer) {
  const std::string stage_1 = "parallelism.zero_stage=1", muon = "optimizer.name=muon";
  for (const auto& [ranks, keys] : std::vector<std::pair<int, Words>>{
           {1, {}}, {4, {}}, {4, {stage_1}}, {4, {muon}}, {4, {stage_1, "training.dtype=bfloat16"}},
           {2, {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_post_validation=true"}}}) {
    const Plan kept = plan_of(ranks, 4, keys), offloaded = plan_of(ranks, 4, with(keys, {"optimizer.offload=true"}));
    for (int rank = 0; rank < ranks; ++rank) {
      const MemoryBytes &before = kept.memory_of(rank), &after = offloaded.memory_of(rank);
      EXPECT_EQ(before.host, 0);
      EXPECT_GT(after.host, 0);
      EXPECT_EQ(after.optimizer + after.host, before.optimizer) << rank;
      EXPECT_EQ(after.parameters + after.gradients, before.parameters + before.gradients) << rank;
      // Saved to undo the step, the state is on the host twice, but it is copied to the device and back once.
      const bool undoes = kept.post_validates() && rank + 1 < ranks;
      EXPECT_EQ(after.host_copies, 2 * after.host / (undoes ? 2 : 1)) << rank;
      EXPECT_LE(after.total(), before.total()) << rank;
    }
  }
}

TEST(OffloadPlan, MovesTheActivationsOfBlocks) {
  const std::string offload = "activation_checkpoint.offload=true";
  struct Case {
    int ranks, live;  // live: microbatches between forward and backward at the peak, on rank 0
    Words keys;
  };
  for (const auto& [ranks, live, keys] : std::vector<Case>{
           {1, 1, {}},
           {1, 1, {"activation_checkpoint.mode=full"}},
           {2, 1, {"parallelism.zero_stage=3", "parallelism.zero_reshard=microbatch"}},
           {2, 2, {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=1f1b"}},
           {2, 4, {"parallelism.pipeline_parallel_degree=2", "parallelism.pipeline_parallel_schedule=gpipe"}}}) {
    const bool has_pipeline = live > 1;
    const int64_t stages = has_pipeline ? 2 : 1;
    const int64_t six = plan_of(ranks, 6, keys).memory_of(0).activations,
                  four = plan_of(ranks, 4, keys).memory_of(0).activations;
    const int64_t block = stages * (six - four) / (2 * live);
    const Plan kept = plan_of(ranks, 4, keys), offloaded = plan_of(ranks, 4, with(keys, {offload}));
    const MemoryBytes &before = kept.memory_of(0), &after = offloaded.memory_of(0);
    EXPECT_EQ(after.host, live * 4 / stages * block) << keys.size();
    EXPECT_EQ(after.activations + after.host, before.activations);
    const int64_t microbatches = kept.data_shard(0).microbatches.size();
    EXPECT_EQ(after.host_copies, 2 * microbatches * 4 / stages * block);
    // While a pass runs, the device holds what two blocks save, however many there are.
    const MemoryBytes deeper = plan_of(ranks, 6, with(keys, {offload})).memory_of(0);
    EXPECT_GE(after.working, 2 * block);
    EXPECT_EQ(deeper.activations + deeper.working, after.activations + after.working);
    EXPECT_LT(after.total(), before.total());
  }
}

// A rank with one block, or with one parameter, holds no second one.
TEST(OffloadPlan, NeedsNoMoreThanThereIs) {
  const Words apart = {"parallelism.pipeline_parallel_degree=4", "parallelism.pipeline_parallel_layers=1,1,1,1",
                       "training.global_batch_size=2"};
  const Plan kept = plan_of(4, 4, apart);
  for (const std::string offload : {"optimizer.offload=true", "activation_checkpoint.offload=true"}) {
    const Plan offloaded = plan_of(4, 4, with(apart, {offload}));
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_LE(offloaded.memory_of(rank).total(), kept.memory_of(rank).total()) << offload << ", " << rank;
    }
  }
}

TEST(OffloadPlan, IsPrinted) {
  const std::string text = explain(plan_of(2, 4, {"optimizer.offload=true"}), Sections::all());
  EXPECT_TRUE(says(text, {"on host", "copied"})) << text;
  EXPECT_FALSE(says(explain(plan_of(2, 4, {}), Sections::all()), {"on host"}));
}

}  // namespace
}  // namespace orthant::offload_plan_test

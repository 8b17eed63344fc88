// Warnings about cores, ranks without sequences and disk space. Planned checkpoint sizes equal those of real
// checkpoints.
#include "advice/run_warnings.h"

#include "base/text.h"
#include "tests/support/says.h"
#include "tests/support/tiny_run.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace orthant::run_warnings_test {
namespace {

int64_t tensor_file_bytes(const std::string& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

TEST(RunWarnings, ACheckpointTakesThePlannedBytes) {
  constexpr int64_t kHeaders = 10000;  // names and shapes before the tensors
  for (const char* dtype : {"float32", "bfloat16", "float64"}) {
    for (const char* optimizer : {"adamw", "sgd"}) {
      const TinyRun run({fmt::format("training.dtype={}", dtype), fmt::format("optimizer.name={}", optimizer)});
      const Plan plan = run.plan(2);
      train_ranks(plan, run.data(), {.steps = 1, .save = true});
      const int64_t real = tensor_file_bytes(run.folder() + "/out/checkpoints/step-000001");
      EXPECT_GE(real, checkpoint_bytes(plan)) << dtype << ", " << optimizer;
      EXPECT_LE(real, checkpoint_bytes(plan) + kHeaders) << dtype << ", " << optimizer;
    }
  }
}

TEST(RunWarnings, OfAFamilyThatTheModelDoesNotBelongTo) {
  // The run file has fewer key heads than query heads, which GPT-2 cannot have.
  const auto warning = [](const std::vector<std::string>& words) { return family_warning(TinyRun(words).plan(1)); };
  const std::string gpt2 = "model.architecture=gpt2";
  EXPECT_TRUE(says(warning({gpt2}), {"model.architecture = \"gpt2\"", "written as \"orthant\"",
                                     "transformers does not read", "leave out the keys of [model]"}));
  EXPECT_TRUE(says(warning({"model.architecture=mistral", "model.qk_norm=true"}), {"written as \"qwen3\": "}));
  EXPECT_EQ(warning({gpt2, "model.num_key_value_heads=4"}), "");
  EXPECT_EQ(warning({"model.qk_norm=true"}), "");
}

TEST(RunWarnings, OfATokenizerThatTransformersReadsByOtherRules) {
  const auto warning = [](const std::vector<std::string>& words) { return tokenizer_warning(TinyRun(words).plan(1)); };
  EXPECT_TRUE(says(warning({"model.architecture=qwen2"}), {"data.tokenizer = \"byte\"", "PreTrainedTokenizerFast"}));
  EXPECT_EQ(warning({"model.architecture=mistral"}), "");
}

TEST(RunWarnings, OfADiskTooSmallForACheckpoint) {
  const TinyRun run;
  const Plan plan = run.plan(1);
  const int64_t needed = checkpoint_bytes(plan);
  EXPECT_EQ(disk_warning(plan, needed), "");
  EXPECT_EQ(disk_warning(plan, std::nullopt), "");
  EXPECT_TRUE(says(disk_warning(plan, needed - 1), {"a checkpoint takes " + format_bytes(static_cast<double>(needed)),
                                                    run.folder() + "/out has ", "job.dump_folder"}));
  const TempFolder folder;
  const auto here = free_disk_bytes(folder.path()), below = free_disk_bytes(folder / "not/yet/there");
  ASSERT_TRUE(here && below);
  EXPECT_GT(*here, 0);
  EXPECT_GT(*below, 0);
  EXPECT_TRUE(free_disk_bytes("no/such/folder"));  // of the working directory
}

TEST(RunWarnings, OfPipelineRanksWithoutLayersAndOfSettingsWithoutEffect) {
  const TinyRun run;  // of two layers
  const auto on = [&](int ranks, const std::string& more) {
    return run.plan(ranks, {fmt::format("parallelism.pipeline_parallel_degree={}", ranks), "parallelism." + more});
  };
  const std::string schedule = "pipeline_parallel_schedule=";
  EXPECT_EQ(empty_ranks_warning(on(3, schedule + "1f1b")), "");  // the last rank has the head
  EXPECT_TRUE(says(empty_ranks_warning(on(5, schedule + "1f1b")),
                   {"2 of 5 pipeline ranks have no layer", "pipeline_parallel_degree to 3"}));
  EXPECT_EQ(empty_ranks_warning(on(5, "vocabulary_parallel=algorithm_2")), "");
  EXPECT_EQ(idle_settings_warning(on(2, schedule + "gpipe")), "");
  EXPECT_TRUE(says(idle_settings_warning(on(1, schedule + "gpipe")),
                   {"parallelism.pipeline_parallel_schedule = \"gpipe\"", "has no effect"}));
}

// A stage of ZeRO without a second rank that holds the same parameters is stage 0, with its memory.
TEST(RunWarnings, OfStatesThatNoRanksShare) {
  const TinyRun run;
  const Plan alone = run.plan(2, {"parallelism.pipeline_parallel_degree=2", "parallelism.zero_stage=3"}),
             shared = run.plan(2, {"parallelism.zero_stage=3"}),
             unsharded = run.plan(2, {"parallelism.pipeline_parallel_degree=2"});
  EXPECT_TRUE(says(idle_settings_warning(alone), {"parallelism.zero_stage = 3", "has no effect", "1 rank"}));
  EXPECT_EQ(idle_settings_warning(shared), "");
  EXPECT_TRUE(says(idle_settings_warning(run.plan(2, {"parallelism.zero_reshard=never"})),
                   {"parallelism.zero_reshard = \"never\"", "has no effect", "below 3"}));
  EXPECT_FALSE(alone.shards_weights());
  EXPECT_TRUE(shared.shards_weights());
  EXPECT_EQ(alone.largest_memory_bytes(), unsharded.largest_memory_bytes());
}

TEST(RunWarnings, OfMoreRanksOrThreadsThanCores) {
  EXPECT_EQ(cores_warning(2, 1, 2), "");
  EXPECT_EQ(cores_warning(1, 2, 2), "");
  EXPECT_EQ(cores_warning(4, 1, 2),
            "4 ranks share 2 cores, which makes steps slower: start at most 2 on this machine (run.ranks), or use more "
            "machines");
  EXPECT_EQ(cores_warning(2, 4, 4),
            "2 ranks of 4 threads share 4 cores, which makes steps slower: set run.threads_per_rank to at most 2");
  EXPECT_EQ(cores_warning(1, 3, 1),
            "1 rank of 3 threads share 1 core, which makes steps slower: set run.threads_per_rank to at most 1");
}

TEST(RunWarnings, OfRanksWithoutSequences) {
  const TinyRun run;  // 7 sequences
  EXPECT_EQ(idle_ranks_warning(run.plan(7)), "");
  EXPECT_EQ(idle_ranks_warning(run.plan(8, {"parallelism.tensor_parallel_degree=2"})), "");
  EXPECT_TRUE(
      says(idle_ranks_warning(run.plan(16)), {"9 of 16 ranks get no sequence: training.global_batch_size = 7 (",
                                              "at least the number of data shards, 16", "set it to at least 16"}));
  EXPECT_TRUE(says(idle_ranks_warning(run.plan(16, {"parallelism.tensor_parallel_degree=2"})),
                   {"2 of 16 ranks get no sequence", "at least 8"}));
}

}  // namespace
}  // namespace orthant::run_warnings_test

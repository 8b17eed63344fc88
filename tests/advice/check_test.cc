// Run files that parse but ask for the impossible: keys that contradict each other, and features that are not built.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "advice/advised_plan.h"
#include "base/errors.h"
#include "config/config.h"
#include "tests/support/says.h"

namespace orthant::config_check_test {
namespace {

using Words = std::vector<std::string>;

std::string check_error_of(const std::string& text, const Words& overrides = {}, const BuildFeatures& abilities = {}) {
  const Config config = parse_config(text, "run.toml", overrides);
  try {
    check_with_advice(config, abilities);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

struct BadFile {
  std::string text;
  std::string message;
};

TEST(ConfigCheck, KeysThatContradictEachOtherAreRefused) {
  const BadFile table[] = {
      {"[training]\nlocal_batch_size = 64",
       "training.local_batch_size = 64 (run.toml:2) must be at most training.global_batch_size = 32 (default); set "
       "it to 32, or training.global_batch_size to 64"},
      {"[training]\nsteps = 5\n[lr_scheduler]\nwarmup_steps = 6",
       "lr_scheduler.warmup_steps = 6 (run.toml:4) must be at most training.steps = 5 (run.toml:2); set it to 5, or "
       "training.steps to 6"},
      {"[training]\nseq_len = 2048",
       "training.seq_len = 2048 (run.toml:2) must be at most model.max_position_embeddings = 1024 (default); set it "
       "to 1024, or model.max_position_embeddings to 2048"},
      {"[model]\nnum_key_value_heads = 3",
       "model.num_key_value_heads = 3 (run.toml:2) must divide model.num_attention_heads = 8 (default); set it to 2 "
       "or 4"},
      {"[model]\nnum_attention_heads = 6\nnum_key_value_heads = 3\nhidden_size = 20",
       "model.num_attention_heads = 6 (run.toml:2) must divide model.hidden_size = 20 (run.toml:4) while "
       "model.head_dim is 0; set model.hidden_size to 24, or model.num_attention_heads to 5 and "
       "model.num_key_value_heads to 1"},
      {"[model]\nhead_dim = 33",
       "model.head_dim = 33 (run.toml:2) must be even, because rotary positions rotate pairs of numbers; set it to "
       "32 or 34"},
      {"[model]\nhidden_size = 24",
       "model.hidden_size = 24 (run.toml:2) must be a multiple of 2 x model.num_attention_heads = 8 (default), "
       "because rotary positions rotate pairs of numbers; set it to 16 or 32, or model.num_attention_heads to 4"},
      {"[model]\nrope_scaling_type = 'llama3'\nrope_scaling_low_freq_factor = 4",
       "model.rope_scaling_high_freq_factor = 4.0 (default) must be above model.rope_scaling_low_freq_factor = 4.0 "
       "(run.toml:3); set it to 16, or model.rope_scaling_low_freq_factor to 1.0"},
      {"[data]\npath = []", "data.path = [] (run.toml:2) must name text files, globs or a PREFIX"},
      {"[data]\nvalidation = 0.0\n[validation]\nfreq = 5",
       "validation.freq = 5 (run.toml:4) requires documents held out for validation, but data.validation = 0.0 "
       "(run.toml:2); set it to 0, or data.validation to 0.05"},
      {"[job]\ndump_folder = ''", "job.dump_folder = \"\" (run.toml:2) must name a folder, such as \"runs/a\""},
      {"[training]\nseed_weights = false",
       "training.seed_weights = false (run.toml:2) requires a directory with weights in model.from; set it to true"},
      {"[model]\nfrom = '/nonexistent/model'",
       "model.from = \"/nonexistent/model\" (run.toml:2) must be a directory that holds a config.json"},
      {"[parallelism]\npipeline_parallel_degree = -1",
       "parallelism.pipeline_parallel_degree = -1 (run.toml:2) and parallelism.data_parallel_degree = -1 (default): "
       "only one degree may be -1; set it to 1, or parallelism.data_parallel_degree to 1"},
      {"[optimizer]\nin_backward = true\n[training]\nlocal_batch_size = 8",
       "training.max_norm = 1.0 (default) must be 0 with optimizer.in_backward = true (run.toml:2), unless "
       "training.clip_by = \"previous_norm\", because the norm of all gradients is known only after backward; set it "
       "to 0, or training.clip_by to \"previous_norm\", or optimizer.in_backward to false"},
      {"[optimizer]\nin_backward = true\n[training]\nlocal_batch_size = 8\nmax_norm = 0\non_nonfinite = 'skip'",
       "training.on_nonfinite = \"skip\" (run.toml:6) must be \"stop\" with optimizer.in_backward = true (run.toml:2), "
       "because parameters are updated before the norm of all gradients is known; set it to \"stop\", or "
       "optimizer.in_backward to false"},
      {"[training]\nmax_skipped_steps = 3",
       "training.max_skipped_steps = 3 (run.toml:2) has no effect with training.on_nonfinite = \"stop\" (default); set "
       "it to 10, or training.on_nonfinite to \"skip\""},
      {"[parallelism]\ndata_parallel_shard_degree = 2",
       "parallelism.data_parallel_shard_degree = 2 (run.toml:2) has no effect with parallelism.zero_stage = 0 "
       "(default); set it to 0, or parallelism.zero_stage to 1"},
  };
  for (const BadFile& bad : table) EXPECT_EQ(check_error_of(bad.text), bad.message) << bad.text;
}

TEST(ConfigCheck, WhatIsNotBuiltIsRefusedWithTheLegalValue) {
  const std::pair<std::string, std::string> table[] = {
      {"run.device=cuda",
       "run.device = \"cuda\" (command line) must be \"cpu\", because this build of Orthant has no CUDA; set it to "
       "\"cpu\""},
      {"run.transport=ucx",
       "run.transport = \"ucx\" (command line) requires UCX, but this build of Orthant has no UCX; set it to "
       "\"auto\" or \"gloo\""},
      {"run.transport=nccl",
       "run.transport = \"nccl\" (command line) requires a build of Orthant with NCCL; set it to \"auto\" or "
       "\"gloo\""},
      {"model.masked_share=0.2",
       "model.masked_share = 0.2 (command line) has no effect with model.objective = \"causal\" (default); set it "
       "to 0.15, or model.objective to \"masked\""},
      {"data.long_documents=cut",
       "data.long_documents = \"cut\" (command line) has no effect with data.mask_documents = false (default); set "
       "it to \"refuse\", or data.mask_documents to true"},
      {"activation_checkpoint.operations=mlp",
       "activation_checkpoint.operations = [\"mlp\"] (command line) has no effect with activation_checkpoint.mode = "
       "\"none\" (default); set it to [], or activation_checkpoint.mode to \"selective\""},
      {"activation_checkpoint.layers=2",
       "activation_checkpoint.layers = 2 (command line) has no effect with activation_checkpoint.mode = \"none\" "
       "(default); set it to 1, or activation_checkpoint.mode to \"full\""},
      {"activation_checkpoint.mode=selective",
       "activation_checkpoint.operations = [] (default) must name at least one of attention, mlp, norms, swiglu with "
       "activation_checkpoint.mode = \"selective\" (command line), such as [\"norms\", \"swiglu\"]; set it to "
       "[\"attention\"] or [\"mlp\"], or activation_checkpoint.mode to \"none\""},
      {"parallelism.expert_parallel_degree=2",
       "parallelism.expert_parallel_degree = 2 (command line) must be 1, because this version of Orthant has no expert "
       "parallelism; set it to 1"},
  };
  for (const auto& [override, message] : table) EXPECT_EQ(check_error_of("", {override}), message);
  const BuildFeatures all = {.only_plans = false, .nccl = true, .no_ucx = ""};
  for (const std::string transport : {"auto", "nccl", "ucx"}) {
    EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.transport=" + transport}, all),
              "run.device = \"cuda\" (command line) must be \"cpu\", because this build of Orthant has no CUDA; set it "
              "to \"cpu\"" +
                  std::string(transport == "nccl" ? " and run.transport to \"auto\"" : ""));
    EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.transport=" + transport}, {.only_plans = true}), "no error");
  }
  EXPECT_EQ(check_error_of("", {"run.transport=ucx"}, {.no_ucx = "libucp.so.0 cannot be loaded"}),
            "run.transport = \"ucx\" (command line) requires UCX, but libucp.so.0 cannot be loaded; set it to \"auto\" "
            "or \"gloo\"");
  EXPECT_EQ(check_error_of("", {"run.transport=nccl"}, all),
            "run.transport = \"nccl\" (command line) requires run.device = \"cuda\"; set it to \"auto\" or \"ucx\"");
}

TEST(ConfigCheck, GpusAreTrainedOn) {
  const BuildFeatures cuda = {.no_cuda = ""};
  EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.ranks=1"}, cuda), "no error");
  EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.ranks=2"}, cuda), "no error");
  EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.ranks=2"}, {.only_plans = true}), "no error");
  const std::string law =
      "with run.device = \"cuda\" (command line), whose kernels of attention need heads of a "
      "multiple of 8 elements; set ";
  const auto with_heads = [&](const std::string& size) {
    return check_error_of(
        "", {"run.device=cuda", "run.ranks=1", "model.num_attention_heads=4", "model.num_key_value_heads=4", size},
        cuda);
  };
  EXPECT_EQ(with_heads("model.head_dim=12"),
            "model.head_dim = 12 (command line) must be a multiple of 8 " + law +
                "it to 8 or 16, or run.device to \"cpu\"");
  EXPECT_EQ(
      with_heads("model.hidden_size=48"),
      "model.hidden_size = 48 (command line) must be a multiple of 8 x model.num_attention_heads = 4 (command line) " +
          law + "it to 32 or 64");
  EXPECT_EQ(with_heads("model.hidden_size=64"), "no error");
}

// Host memory relieves devices only. A plan for CUDA devices needs no build with CUDA.
TEST(ConfigCheck, OffloadingRequiresADevice) {
  for (const std::string key : {"optimizer.offload", "activation_checkpoint.offload"}) {
    EXPECT_EQ(check_error_of("", {key + "=true"}),
              key + " = true (command line) must be false with run.device = \"cpu\" (default), because the tensors "
                    "of a CPU rank are in host memory already; set it to false");
    EXPECT_EQ(check_error_of("", {key + "=true", "run.device=cuda"}, {.only_plans = true}), "no error");
    EXPECT_EQ(check_error_of("", {key + "=true", "run.device=cuda", "run.ranks=1"}, {.no_cuda = ""}),
              key +
                  " = true (command line) must be false, because this version of Orthant plans offloading but does "
                  "not train with it; set it to false");
  }
}

TEST(ConfigCheck, SettingsOfAnotherOptimizerAreRefused) {
  EXPECT_EQ(check_error_of("", {"optimizer.momentum=0.5"}),
            "optimizer.momentum = 0.5 (command line) has no effect with optimizer.name = \"adamw\" (default); set "
            "it to 0.9, or optimizer.name to \"sgd\"");
  for (const char* setting : {"beta1=0.8", "beta2=0.9", "eps=1e-6"}) {
    EXPECT_TRUE(says(check_error_of("", {"optimizer.name=sgd", fmt::format("optimizer.{}", setting)}),
                     {"has no effect with optimizer.name = \"sgd\""}));
  }
  EXPECT_EQ(check_error_of("", {"optimizer.name=sgd", "optimizer.momentum=0.5"}), "no error");
  EXPECT_EQ(check_error_of("", {"optimizer.beta1=0.8", "optimizer.weight_decay_on=all"}), "no error");
}

TEST(ConfigCheck, AMaskedShareBelongsToTheMaskedObjective) {
  EXPECT_EQ(check_error_of("", {"model.objective=masked", "model.masked_share=0.2"}), "no error");
  EXPECT_EQ(check_error_of("", {"model.objective=causal", "model.masked_share=0.15"}), "no error");
  for (const char* share : {"0", "-0.1", "1.01"}) {
    const Words words = {"model.objective=masked", fmt::format("model.masked_share={}", share)};
    EXPECT_TRUE(
        says(message_of<ConfigError>([&] { check_error_of("", words); }), {"model.masked_share", "above 0 to 1"}));
  }
}

TEST(ConfigCheck, AMaskedShareMasksATokenOfAStep) {
  const Words masked = {"model.objective=masked", "training.seq_len=16", "training.global_batch_size=4"};
  const auto with_share = [&](const char* share) {
    Words words = masked;
    words.push_back(std::string("model.masked_share=") + share);
    words.push_back("training.local_batch_size=4");
    return check_error_of("", words);
  };
  EXPECT_TRUE(says(
      with_share("1e-9"),
      {"model.masked_share = 1e-09", "must mask at least one of the 64 tokens of a step", "set it to 0.15 or 0.017"}));
  EXPECT_TRUE(says(with_share("0.0156"), {"must mask at least one"}));
  EXPECT_EQ(with_share("0.015625"), "no error");
  EXPECT_EQ(with_share("1.7e-02"), "no error");
}

// They have no effect, so that a degree can be varied alone: PipelineConfig.SettingsOfADegreeOfOneHaveNoEffect.
TEST(ConfigCheck, SettingsOfADegreeOfOneAreLegal) {
  for (const char* setting :
       {"tensor_parallel_sequence = false", "context_parallel_attention = \"ring_self_attention\"",
        "context_parallel_placement = \"stripe\"", "context_parallel_window = 2",
        "pipeline_parallel_schedule = \"gpipe\"", "pipeline_parallel_schedule = \"mine.csv\"",
        "pipeline_parallel_stages_per_rank = 2", "vocabulary_parallel = \"naive\""}) {
    EXPECT_EQ(check_error_of(fmt::format("[parallelism]\n{}", setting)), "no error") << setting;
  }
}

TEST(ConfigCheck, AModelDirectoryNeedsItsConfig) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "orthant_config_test_model";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string text = fmt::format("[model]\nfrom = '{}'", folder.string());
  EXPECT_EQ(check_error_of(text), fmt::format("model.from = \"{}\" (run.toml:2) must hold a config.json; name a "
                                              "Hugging Face directory or a checkpoint",
                                              folder.string()));
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_EQ(check_error_of(text), "no error");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace orthant::config_check_test

// Run files that parse but ask for the impossible: keys that contradict each other, and features that are not built.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/errors.h"
#include "config/config.h"
#include "tests/support/says.h"

namespace orthant::config_check_test {
namespace {

using Words = std::vector<std::string>;

std::string check_error_of(const std::string& text, const Words& overrides = {}, const BuildFeatures& abilities = {}) {
  const Config config = parse_config(text, "run.toml", overrides);
  try {
    check_config(config, abilities);
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
       "training.local_batch_size = 64 (run.toml:2) is more than training.global_batch_size = 32 (default); set it to "
       "32"},
      {"[training]\nsteps = 5\n[lr_scheduler]\nwarmup_steps = 6",
       "lr_scheduler.warmup_steps = 6 (run.toml:4) is more than training.steps = 5 (run.toml:2); set it to 5 or less"},
      {"[training]\nseq_len = 2048",
       "training.seq_len = 2048 (run.toml:2) is more than model.max_position_embeddings = 1024 (default); set it to "
       "1024, or model.max_position_embeddings to 2048"},
      {"[model]\nnum_key_value_heads = 3",
       "model.num_key_value_heads = 3 (run.toml:2) does not divide model.num_attention_heads = 8 (default); try 1, 2, "
       "4 "
       "or 8; 8 is without groups"},
      {"[model]\nnum_attention_heads = 6\nnum_key_value_heads = 3\nhidden_size = 20",
       "model.num_attention_heads = 6 (run.toml:2) does not divide model.hidden_size = 20 (run.toml:4); try 1, 2, 4, "
       "5, "
       "10 or 20, or set model.head_dim"},
      {"[model]\nhead_dim = 33",
       "model.head_dim = 33 (run.toml:2) is odd, and rotary positions turn pairs; try 32 or 34"},
      {"[model]\nhidden_size = 24",
       "model.hidden_size = 24 (run.toml:2) gives 8 heads of odd width 3, and rotary positions turn pairs; try 32"},
      {"[model]\nrope_scaling_type = 'llama3'\nrope_scaling_low_freq_factor = 4",
       "model.rope_scaling_high_freq_factor = 4.0 (default) must be above model.rope_scaling_low_freq_factor = 4.0 "
       "(run.toml:3)"},
      {"[data]\npath = []", "data.path = [] (run.toml:2) names no file; name text files, globs or a PREFIX"},
      {"[data]\nvalidation = 0.0\n[validation]\nfreq = 5",
       "validation.freq = 5 (run.toml:4) needs held-out documents, but data.validation = 0.0 (run.toml:2); set "
       "validation.freq to 0, or hold out a share such as 0.05"},
      {"[job]\ndump_folder = ''", "job.dump_folder = \"\" (run.toml:2) is empty; name a folder, such as \"runs/a\""},
      {"[training]\nseed_weights = false",
       "training.seed_weights = false (run.toml:2) needs a directory with weights; set model.from, or set it to true"},
      {"[model]\nfrom = '/nonexistent/model'",
       "model.from = \"/nonexistent/model\" (run.toml:2) is not a directory; name one that holds a config.json"},
      {"[parallelism]\npipeline_parallel_degree = -1",
       "parallelism.pipeline_parallel_degree = -1 (run.toml:2) and parallelism.data_parallel_degree = -1 (default): "
       "only "
       "one degree can be the rest of the ranks; give the other a number"},
  };
  for (const BadFile& bad : table) EXPECT_EQ(check_error_of(bad.text), bad.message) << bad.text;
}

TEST(ConfigCheck, WhatIsNotBuiltIsRefusedWithTheLegalValue) {
  constexpr const char* kOthers =
      ": this version of Orthant runs data, sequence, tensor, pipeline and vocabulary parallelism only; set it to ";
  const std::pair<std::string, std::string> table[] = {
      {"run.device=cuda", "run.device = \"cuda\" (command line): this build of Orthant has no CUDA; set it to \"cpu\""},
      {"run.transport=ucx",
       "run.transport = \"ucx\" (command line): this build of Orthant has no UCX; set it to \"auto\" or \"gloo\""},
      {"run.transport=nccl",
       "run.transport = \"nccl\" (command line): this build of Orthant has no NCCL; set it to \"auto\" or \"gloo\""},
      {"model.architecture=gpt2",
       "model.architecture = \"gpt2\" (command line): this version of Orthant trains LLaMA "
       "models only; set it to \"llama\""},
      {"model.masked_share=0.2",
       "model.masked_share = 0.2 (command line): it changes nothing with model.objective = \"causal\" (default); set "
       "it "
       "to 0.15"},
      {"data.long_documents=cut",
       "data.long_documents = \"cut\" (command line): it changes nothing with data.mask_documents = false (default); "
       "set it to \"refuse\""},
      {"parallelism.zero_stage=1",
       "parallelism.zero_stage = 1 (command line): this version of Orthant keeps gradients "
       "and optimizer state whole on every rank; set it to 0"},
      {"parallelism.expert_parallel_degree=2",
       fmt::format("parallelism.expert_parallel_degree = 2 (command line){}1", kOthers)},
      {"parallelism.vocabulary_parallel=naive",
       "parallelism.vocabulary_parallel = \"naive\" (command line): it belongs to "
       "parallelism.pipeline_parallel_degree = 1 (default) and changes nothing while that is 1; set it to \"none\""},
  };
  for (const auto& [override, message] : table) EXPECT_EQ(check_error_of("", {override}), message);
  const BuildFeatures all = {.cuda = true, .nccl = true, .no_ucx = ""};
  for (const std::string transport : {"auto", "nccl", "ucx"}) {
    EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.transport=" + transport}, all),
              "run.device = \"cuda\" (command line): this version of Orthant trains on the CPU only; set it to "
              "\"cpu\"" + std::string(transport == "nccl" ? " and run.transport to \"auto\"" : ""));
  }
  EXPECT_EQ(check_error_of("", {"run.transport=ucx"}, {.no_ucx = "libucp.so.0 cannot be loaded"}),
            "run.transport = \"ucx\" (command line): libucp.so.0 cannot be loaded; set it to \"auto\" or \"gloo\"");
  EXPECT_EQ(
      check_error_of("", {"run.transport=nccl"}, all),
      "run.transport = \"nccl\" (command line): NCCL needs run.device = \"cuda\"; set it to \"auto\" or \"gloo\"");
}

// A model with both would be saved as a Mistral, for which transformers drops the biases.
TEST(ConfigCheck, BiasesDoNotGoWithASlidingWindow) {
  for (const char* key : {"model.attention_bias", "model.mlp_bias"}) {
    EXPECT_EQ(check_error_of("[model]\nsliding_window = 8", {fmt::format("{}=true", key)}),
              fmt::format("{} = true (command line): a model with a sliding window is saved as a Mistral, which has no "
                          "biases; set it to false", key));
    EXPECT_EQ(check_error_of("", {fmt::format("{}=true", key)}), "no error");
  }
}

TEST(ConfigCheck, SettingsOfAnotherOptimizerAreRefused) {
  EXPECT_EQ(check_error_of("", {"optimizer.momentum=0.5"}),
            "optimizer.momentum = 0.5 (command line): it changes nothing with optimizer.name = \"adamw\" (default); "
            "set it to 0.9");
  for (const char* setting : {"beta1=0.8", "beta2=0.9", "eps=1e-6"}) {
    EXPECT_TRUE(says(check_error_of("", {"optimizer.name=sgd", fmt::format("optimizer.{}", setting)}),
                     {"it changes nothing with optimizer.name = \"sgd\""}));
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
  EXPECT_TRUE(says(with_share("1e-9"), {"model.masked_share = 1e-09", "less than one of the 64 tokens of a step",
                                        "1.7e-02 or more", "training.global_batch_size = 4"}));
  EXPECT_TRUE(says(with_share("0.0156"), {"less than one"}));
  EXPECT_EQ(with_share("0.015625"), "no error");
  EXPECT_EQ(with_share("1.7e-02"), "no error");
}

TEST(ConfigCheck, SettingsOfADegreeOfOneAreRefused) {
  struct Setting {
    std::string key, value, degree, legal;
  };
  const Setting table[] = {
      {"tensor_parallel_sequence", "false", "tensor_parallel_degree", "true"},
      {"context_parallel_attention", "\"ring_self_attention\"", "context_parallel_ring", "\"ring_attention\""},
      {"context_parallel_placement", "\"stripe\"", "context_parallel_ring", "\"zigzag\""},
      {"pipeline_parallel_schedule", "\"gpipe\"", "pipeline_parallel_degree", "\"1f1b\""},
      {"pipeline_parallel_schedule", "\"mine.csv\"", "pipeline_parallel_degree", "\"1f1b\""},
      {"pipeline_parallel_stages_per_rank", "1", "pipeline_parallel_degree", "0"},
      {"pipeline_parallel_stages_per_rank", "2", "pipeline_parallel_degree", "0"},
      {"pipeline_parallel_layers", "[2]", "pipeline_parallel_degree", "[]"},
  };
  for (const auto& [key, value, degree, legal] : table) {
    EXPECT_EQ(check_error_of(fmt::format("[parallelism]\n{} = {}", key, value)),
              fmt::format("parallelism.{} = {} (run.toml:2): it belongs to parallelism.{} = 1 (default) and changes "
                          "nothing while that is 1; set it to {}",
                          key, value, degree, legal));
    EXPECT_EQ(check_error_of(fmt::format("[parallelism]\n{} = {}", key, legal)), "no error");
    // With a degree above 1, the setting itself is not refused.
    const std::string wider = check_error_of(fmt::format("[parallelism]\n{} = {}\n{} = 2", key, value, degree));
    EXPECT_TRUE(wider == "no error" || wider.starts_with("parallelism." + degree)) << wider;
  }
}

TEST(ConfigCheck, AModelDirectoryNeedsItsConfig) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "orthant_config_test_model";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string text = fmt::format("[model]\nfrom = '{}'", folder.string());
  EXPECT_EQ(check_error_of(text), fmt::format("model.from = \"{}\" (run.toml:2) holds no config.json; name a Hugging "
                                              "Face directory or a checkpoint",
                                              folder.string()));
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_EQ(check_error_of(text), "no error");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace orthant::config_check_test

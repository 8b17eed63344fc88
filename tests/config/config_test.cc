// The run file: every documented key with its default, and the configurations that legal files give.
#include "config/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/errors.h"
#include "base/text.h"

namespace orthant::config_test {
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

// The keys that users and scripts rely on, with their defaults. It is a separate copy, so that a change is deliberate.
constexpr std::pair<std::string_view, std::string_view> kDocumented[] = {
    {"job.dump_folder", "\"runs/run\""},
    {"job.description", "\"\""},
    {"run.ranks", "4"},
    {"run.device", "\"cpu\""},
    {"run.transport", "\"auto\""},
    {"run.threads_per_rank", "0"},
    {"model.from", "\"\""},
    {"model.architecture", "\"llama\""},
    {"model.hidden_size", "256"},
    {"model.intermediate_size", "688"},
    {"model.num_hidden_layers", "6"},
    {"model.num_attention_heads", "8"},
    {"model.num_key_value_heads", "4"},
    {"model.vocab_size", "0"},
    {"model.max_position_embeddings", "1024"},
    {"model.rope_theta", "10000.0"},
    {"model.tie_word_embeddings", "false"},
    {"model.attention_bias", "false"},
    {"model.mlp_bias", "false"},
    {"model.dropout", "0.0"},
    {"model.objective", "\"causal\""},
    {"data.path", "[\"corpus.txt\"]"},
    {"data.validation", "0.05"},
    {"data.tokenizer", "\"byte\""},
    {"training.steps", "300"},
    {"training.seq_len", "256"},
    {"training.global_batch_size", "32"},
    {"training.local_batch_size", "4"},
    {"training.dtype", "\"float32\""},
    {"training.max_norm", "1.0"},
    {"training.clip_by", "\"norm\""},
    {"training.seed", "1234"},
    {"training.seed_weights", "true"},
    {"activation_checkpoint.mode", "\"none\""},
    {"optimizer.name", "\"adamw\""},
    {"optimizer.lr", "0.003"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.95"},
    {"optimizer.eps", "1e-08"},
    {"optimizer.momentum", "0.9"},
    {"optimizer.weight_decay", "0.1"},
    {"optimizer.weight_decay_on", "\"matrices\""},
    {"optimizer.in_backward", "false"},
    {"optimizer.offload", "false"},
    {"lr_scheduler.decay_type", "\"cosine\""},
    {"lr_scheduler.warmup_steps", "20"},
    {"lr_scheduler.decay_ratio", "1.0"},
    {"lr_scheduler.min_lr_factor", "0.1"},
    {"validation.freq", "50"},
    {"validation.steps", "8"},
    {"metrics.log_freq", "1"},
    {"metrics.enable_tensorboard", "true"},
    {"metrics.enable_prometheus", "false"},
    {"metrics.sample_tokens", "240"},
    {"metrics.port", "0"},
    {"checkpoint.interval", "100"},
    {"checkpoint.keep_latest_k", "2"},
    {"parallelism.data_parallel_degree", "-1"},
    {"parallelism.zero_stage", "0"},
    {"parallelism.zero_reshard", "\"step\""},
    {"parallelism.data_parallel_shard_degree", "0"},
    {"parallelism.data_parallel_replicate_degree", "0"},
    {"parallelism.tensor_parallel_kind", "\"1d\""},
    {"parallelism.tensor_parallel_degree", "1"},
    {"parallelism.tensor_parallel_mesh", "[1, 1, 1]"},
    {"parallelism.tensor_parallel_sequence", "true"},
    {"parallelism.context_parallel_ulysses", "1"},
    {"parallelism.context_parallel_ring", "1"},
    {"parallelism.context_parallel_attention", "\"ring_attention\""},
    {"parallelism.context_parallel_placement", "\"zigzag\""},
    {"parallelism.pipeline_parallel_degree", "1"},
    {"parallelism.pipeline_parallel_schedule", "\"1f1b\""},
    {"parallelism.pipeline_parallel_stages_per_rank", "0"},
    {"parallelism.vocabulary_parallel", "\"none\""},
    {"parallelism.expert_parallel_degree", "1"},
};

TEST(Config, EveryDocumentedKeyHasItsDefault) {
  const Config config;
  const auto keys = config_keys();
  for (const auto& [key, value] : kDocumented) {
    EXPECT_NE(std::find(keys.begin(), keys.end(), key), keys.end()) << key;
    EXPECT_EQ(config.locate(key), fmt::format("{} = {} (default)", key, value));
  }
}

TEST(Config, KeysAreUniqueAndTheDefaultsAreLegal) {
  const auto keys = config_keys();
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
  const Config printed = parse_config(print_config(Config{}), "printed.toml", {});
  EXPECT_TRUE(printed == Config{});
  EXPECT_EQ(check_error_of(""), "no error");
}

TEST(Config, LocateRefusesKeysThatDoNotExist) { EXPECT_THROW(Config{}.locate("training.stepz"), LogicError); }

TEST(Config, TheDumpFolderIsNamedAfterTheRunFile) {
  const Config config = parse_config("", "examples/my.first.toml", {});
  EXPECT_EQ(config.locate("job.dump_folder"),
            "job.dump_folder = \"runs/my.first\" (default, from the name of the run file)");
  const auto folder = [](const std::string& text, const std::string& name, const Words& overrides) {
    return parse_config(text, name, overrides).job.dump_folder;
  };
  EXPECT_EQ(folder("", "tiny", {}), "runs/tiny");
  EXPECT_EQ(folder("[job]\ndump_folder = 'here'", "tiny.toml", {}), "here");
  EXPECT_EQ(folder("", "tiny.toml", {"job.dump_folder=there"}), "there");
  EXPECT_EQ(folder("", "", {}), Config{}.job.dump_folder);
}

TEST(Config, ReadsEveryTypeFromAFile) {
  const std::string text = R"(
[job]
dump-folder = "runs/a \"b\""
[data]
path = ["a.txt", "b*.txt"]
validation = ["held.txt"]
[training]
steps = 1_000
seq-len = 128
[optimizer]
lr = 1
eps = 1e-10
[metrics]
enable_tensorboard = false
[parallelism]
tensor_parallel_mesh = [2, 2, 1]
)";
  const Config config = parse_config(text, "run.toml", {});
  EXPECT_EQ(config.job.dump_folder, "runs/a \"b\"");
  EXPECT_EQ(config.data.path, (Words{"a.txt", "b*.txt"}));
  EXPECT_EQ(config.data.validation, (HeldOut{0.0, {{"", {"held.txt"}}}}));
  EXPECT_EQ(config.training.steps, 1000);
  EXPECT_EQ(config.training.seq_len, 128);
  EXPECT_EQ(config.optimizer.lr, 1.0);
  EXPECT_EQ(config.optimizer.eps, 1e-10);
  EXPECT_FALSE(config.metrics.enable_tensorboard);
  EXPECT_EQ(config.parallelism.tensor_parallel_mesh, (std::array<int64_t, 3>{2, 2, 1}));
  EXPECT_EQ(config.locate("training.steps"), "training.steps = 1000 (run.toml:8)");
  EXPECT_EQ(config.locate("data.path"), "data.path = [\"a.txt\", \"b*.txt\"] (run.toml:5)");
  EXPECT_EQ(config.locate("training.seed"), "training.seed = 1234 (default)");
  EXPECT_EQ(parse_config("[data]\npath = 'one.txt'", "run.toml", {}).data.path, Words{"one.txt"});
}

TEST(Config, TheCommandLineBeatsTheFile) {
  const Words overrides = {"--training.steps",
                           "20",
                           "--training.seq-len=64",
                           "optimizer.lr=1e-4",
                           "--data.path",
                           "a.txt,b.txt",
                           "--metrics.no-enable-tensorboard",
                           "--model.tie_word_embeddings",
                           "parallelism.tensor_parallel_mesh=[2, 1, 1]",
                           "--parallelism.data_parallel_degree",
                           "-1",
                           "--data.validation=0.1",
                           "--no-training.seed_weights",
                           "--training.steps=21"};
  const Config config = parse_config("[training]\nsteps = 5\nseq_len = 7", "run.toml", overrides);
  EXPECT_EQ(config.training.steps, 21);
  EXPECT_EQ(config.training.seq_len, 64);
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.data.path, (Words{"a.txt", "b.txt"}));
  EXPECT_FALSE(config.metrics.enable_tensorboard);
  EXPECT_TRUE(config.model.tie_word_embeddings);
  EXPECT_EQ(config.parallelism.tensor_parallel_mesh, (std::array<int64_t, 3>{2, 1, 1}));
  EXPECT_EQ(config.parallelism.data_parallel_degree, -1);
  EXPECT_EQ(config.data.validation, (HeldOut{0.1, {}}));
  EXPECT_FALSE(config.training.seed_weights);
  EXPECT_EQ(config.locate("training.steps"), "training.steps = 21 (command line)");
  EXPECT_EQ(parse_config("", "", Words{"--data.validation", "x.txt,y.txt"}).data.validation,
            (HeldOut{0.0, {{"", {"x.txt", "y.txt"}}}}));
  const HeldOut sets{0.0, {{"code", {"a.py", "b.py"}}, {"wiki", {"w.txt"}}}};
  EXPECT_EQ(
      parse_config("", "", Words{"--data.validation", "{wiki = 'w.txt', code = ['a.py', 'b.py']}"}).data.validation,
      sets);
  EXPECT_EQ(parse_config("[data.validation]\nwiki = 'w.txt'\ncode = ['a.py', 'b.py']", "", {}).data.validation, sets);
}

TEST(Config, TakesOverridesOutOfACommandLine) {
  Words arguments = {"run.toml",
                     "--resume",
                     "--training.steps",
                     "20",
                     "--svg",
                     "a.svg",
                     "run.ranks=2",
                     "--metrics.enable_tensorboard",
                     "other.toml",
                     "--parallelism.data_parallel_degree",
                     "-1",
                     "--metrics.enable_tensorboard",
                     "off",
                     "--job.description",
                     "--json"};
  const Words taken = take_overrides(arguments);
  EXPECT_EQ(arguments, (Words{"run.toml", "--resume", "--svg", "a.svg", "other.toml", "--json"}));
  EXPECT_EQ(taken, (Words{"--training.steps", "20", "run.ranks=2", "--metrics.enable_tensorboard",
                          "--parallelism.data_parallel_degree", "-1", "--metrics.enable_tensorboard", "off",
                          "--job.description"}));
}

TEST(Config, DefaultsGiveWayToWhatTheUserSet) {
  const Config config =
      parse_config("[training]\nsteps = 5\nglobal_batch_size = 2\n[data]\nvalidation = 0", "run.toml", {});
  EXPECT_EQ(config.locate("lr_scheduler.warmup_steps"),
            "lr_scheduler.warmup_steps = 5 (default, no more than training.steps)");
  EXPECT_EQ(config.training.local_batch_size, 2);
  EXPECT_EQ(config.validation.freq, 0);
  EXPECT_EQ(check_error_of("[training]\nsteps = 5\nglobal_batch_size = 2\n[data]\nvalidation = 0"), "no error");
}

TEST(Config, FewerStepsOnTheCommandLineShortenTheWarmUpOfTheFile) {
  const std::string text = "[training]\nsteps = 300\n[lr_scheduler]\nwarmup_steps = 60";
  const Config look = parse_config(text, "run.toml", Words{"training.steps=5"});
  EXPECT_EQ(look.locate("lr_scheduler.warmup_steps"),
            "lr_scheduler.warmup_steps = 5 (run.toml:4, no more than training.steps)");
  EXPECT_EQ(check_error_of(text, {"training.steps=5"}), "no error");
  EXPECT_EQ(parse_config(text, "run.toml", Words{"training.steps=60"}).lr_scheduler.warmup_steps, 60);
  // If both keys are set on the command line, or both in the file, the warm-up is not shortened.
  const Words both = {"training.steps=5", "lr_scheduler.warmup_steps=60"};
  EXPECT_EQ(parse_config(text, "run.toml", both).lr_scheduler.warmup_steps, 60);
  EXPECT_NE(check_error_of(text, both), "no error");
  EXPECT_NE(check_error_of("[training]\nsteps = 5\n[lr_scheduler]\nwarmup_steps = 60"), "no error");
}

TEST(Config, TheExamplesAreGoodRunFiles) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ORTHANT_SOURCE_DIR "/examples")) {
    if (entry.path().extension() != ".toml") continue;
    ++examples;
    EXPECT_NO_THROW(check_config(load_config(entry.path().string(), {}))) << entry.path();
  }
  EXPECT_GE(examples, 1);
}

TEST(Config, RunFilesThatCannotBeReadAreNamed) {
  const auto error_of = [](const std::string& path) -> std::string {
    try {
      load_config(path, {});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(
      error_of("/nonexistent/run.toml"),
      "cannot read the run file /nonexistent/run.toml: No such file or directory; examples/ holds run files to start "
      "from: orthant train examples/jargon.toml");
  EXPECT_EQ(
      error_of("nowhere.toml"),
      fmt::format("cannot read the run file nowhere.toml (seen from {}): No such file or directory; examples/ holds "
                  "run files to start from: orthant train examples/jargon.toml",
                  std::filesystem::current_path().string()));
  const std::string jargon = ORTHANT_SOURCE_DIR "/examples/jargon";
  EXPECT_EQ(
      error_of(jargon),
      fmt::format("cannot read the run file {}: No such file or directory; did you mean {}.toml?", jargon, jargon));
  EXPECT_THROW(load_config(testing::TempDir(), {}), ConfigError);
  EXPECT_TRUE(load_config("", {}) == Config{});
}

}  // namespace
}  // namespace orthant::config_test

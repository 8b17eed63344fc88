// The run file: every documented key with its default, what good files mean, and the exact words for bad ones.
#include "plan/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

std::string error_of(const std::string& text, const Words& overrides = {}) {
  try {
    parse_config(text, "run.toml", overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string check_error_of(const std::string& text, const Words& overrides = {}, const Abilities& abilities = {}) {
  const Config config = parse_config(text, "run.toml", overrides);
  try {
    check_config(config, abilities);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

// The keys that users and scripts rely on, and their defaults: a copy of its own, so that a change here is a decision.
constexpr std::pair<std::string_view, std::string_view> kDocumented[] = {
    {"job.dump_folder", "\"runs/jargon\""},
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
    {"training.seed", "1234"},
    {"training.seed_weights", "true"},
    {"activation_checkpoint.mode", "\"none\""},
    {"optimizer.name", "\"adamw\""},
    {"optimizer.lr", "0.003"},
    {"optimizer.beta1", "0.9"},
    {"optimizer.beta2", "0.95"},
    {"optimizer.eps", "1e-08"},
    {"optimizer.weight_decay", "0.1"},
    {"lr_scheduler.decay_type", "\"cosine\""},
    {"lr_scheduler.warmup_steps", "20"},
    {"lr_scheduler.decay_ratio", "1.0"},
    {"lr_scheduler.min_lr_factor", "0.1"},
    {"validation.freq", "50"},
    {"validation.steps", "8"},
    {"metrics.log_freq", "1"},
    {"metrics.enable_tensorboard", "true"},
    {"checkpoint.interval", "100"},
    {"checkpoint.keep_latest_k", "2"},
    {"parallelism.data_parallel_degree", "-1"},
    {"parallelism.zero_stage", "0"},
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
  EXPECT_EQ(config.data.validation, (HeldOut{0.0, {"held.txt"}}));
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
  const Words overrides = {"--training.steps", "20", "--training.seq-len=64", "optimizer.lr=1e-4",
                           "--data.path", "a.txt,b.txt", "--metrics.no-enable-tensorboard", "--model.tie_word_embeddings",
                           "parallelism.tensor_parallel_mesh=[2, 1, 1]", "--parallelism.data_parallel_degree", "-1",
                           "--data.validation=0.1", "--no-training.seed_weights", "--training.steps=21"};
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
            (HeldOut{0.0, {"x.txt", "y.txt"}}));
}

TEST(Config, TakesOverridesOutOfACommandLine) {
  Words arguments = {"run.toml", "--resume", "--training.steps", "20", "--svg", "a.svg", "run.ranks=2",
                     "--metrics.enable_tensorboard", "other.toml", "--parallelism.data_parallel_degree", "-1",
                     "--metrics.enable_tensorboard", "off", "--job.description", "--json"};
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

struct BadFile {
  std::string text;
  std::string message;
};

TEST(Config, BadFilesAreRefusedWithPlaceAndWayOut) {
  const BadFile table[] = {
      {"[training]\nstepz = 3", "run.toml:2:1: unknown key training.stepz; did you mean training.steps?"},
      {"[training]\n\nlr = 1.0", "run.toml:3:1: unknown key training.lr; did you mean optimizer.lr?"},
      {"[trainnig]\nsteps = 3", "run.toml:1:2: unknown section [trainnig]; did you mean [training]?"},
      {"[xyzzy.a]\nb = 3",
       "run.toml:1:2: unknown section [xyzzy]; the sections are job, run, model, data, training, activation_checkpoint, "
       "optimizer, lr_scheduler, validation, metrics, checkpoint, parallelism"},
      {"[validation]\nplugh = 3", "run.toml:2:1: unknown key validation.plugh; [validation] has freq, steps"},
      {"seq_len = 3", "run.toml:1:1: key seq_len stands outside of any section; did you mean training.seq_len?"},
      {"training = 3", "run.toml:1:1: training is a section; write [training]"},
      {"[[training]]\nsteps = 3", "run.toml:1:3: training is a section; write [training]"},
      {"[training]\nsteps = \"ten\"", "training.steps = 'ten' (run.toml:2:9) must be a whole number"},
      {"[training]\nsteps = 2.5", "training.steps = 2.5 (run.toml:2:9) must be a whole number"},
      {"[training]\nsteps = 0", "training.steps = 0 (run.toml:2:9) must be at least 1"},
      {"[training]\nseed = -1", "training.seed = -1 (run.toml:2:8) must be at least 0"},
      {"[training]\nseed = 99999999999999999999", "run.toml:2:28: Error while parsing decimal integer: "
       "'99999999999999999999' is not representable in 64 bits"},
      {"[model]\ndropout = 1.0", "model.dropout = 1.0 (run.toml:2:11) must be at least 0 and below 1"},
      {"[model]\nrope_theta = 0", "model.rope_theta = 0 (run.toml:2:14) must be above 0"},
      {"[model]\nrope_theta = nan", "model.rope_theta = nan (run.toml:2:14) is not a number"},
      {"[optimizer]\nlr = inf", "optimizer.lr = inf (run.toml:2:6) is not finite"},
      {"[optimizer]\nname = \"adam\"",
       "optimizer.name = 'adam' (run.toml:2:8) must be \"adamw\"; did you mean \"adamw\"?"},
      {"[training]\ndtype = \"fp32\"", "training.dtype = 'fp32' (run.toml:2:9) must be \"float32\", \"bfloat16\" or "
       "\"float64\""},
      {"[training]\ndtype = \"bfloat\"", "training.dtype = 'bfloat' (run.toml:2:9) must be \"float32\", \"bfloat16\" or "
       "\"float64\"; did you mean \"bfloat16\"?"},
      {"[data]\ntokenizer = \"train:0\"", "data.tokenizer = 'train:0' (run.toml:2:13) must be \"byte\", FILE.model or "
       "train:N"},
      {"[data]\npath = [1, 2]", "data.path = [ 1, 2 ] (run.toml:2:8) must be a list of strings"},
      {"[data]\nvalidation = true", "data.validation = true (run.toml:2:14) must be a number or a list of files"},
      {"[data]\nvalidation = 1.0", "data.validation = 1.0 (run.toml:2:14) must be at least 0 and below 1"},
      {"[metrics]\nenable_tensorboard = 1", "metrics.enable_tensorboard = 1 (run.toml:2:22) must be true or false"},
      {"[parallelism]\nzero_stage = 4", "parallelism.zero_stage = 4 (run.toml:2:14) must be 0 to 3"},
      {"[parallelism]\npipeline_parallel_degree = 0",
       "parallelism.pipeline_parallel_degree = 0 (run.toml:2:28) must be at least 1, or -1"},
      {"[parallelism]\ntensor_parallel_mesh = [1, 2]",
       "parallelism.tensor_parallel_mesh = [ 1, 2 ] (run.toml:2:24) must be a list of 3 whole numbers, as in [2, 2, 1]"},
      {"[training]\nseq_len = 3\nseq-len = 4", "run.toml:2:1: training.seq_len is given twice, with '-' and with '_'"},
  };
  for (const BadFile& bad : table) EXPECT_EQ(error_of(bad.text), bad.message) << bad.text;
}

TEST(Config, TomlErrorsNameThePlace) {
  const BadFile table[] = {
      {"[training]\nsteps = 3\nsteps = 4", "run.toml:3:"},
      {"[training\nsteps = 3", "run.toml:1:"},
      {"[training]\nsteps = ", "run.toml:2:"},
      {"[job]\ndescription = \"open", "run.toml:2:"},
      {"[training]\n[training]", "run.toml:2:"},
  };
  for (const BadFile& bad : table) {
    const std::string message = error_of(bad.text);
    EXPECT_TRUE(message.starts_with(bad.message)) << message;
  }
  EXPECT_NE(error_of(table[0].text).find("redefine existing integer 'steps'"), std::string::npos);
}

TEST(Config, BadOverridesAreRefused) {
  const std::pair<Words, std::string> table[] = {
      {{"--training.stepz", "3"}, "unknown key training.stepz (command line); did you mean training.steps?"},
      {{"--trainig.steps=3"},
       "unknown key trainig.steps (command line); did you mean training.steps?"},
      {{"training.steps=ten"}, "training.steps = ten (command line) must be a whole number"},
      {{"training.steps=2.5"}, "training.steps = 2.5 (command line) must be a whole number"},
      {{"training.steps=99999999999999999999"}, "training.steps = 99999999999999999999 (command line) must fit 64 bits"},
      {{"--xyzzy.steps=3"}, "unknown key xyzzy.steps (command line); did you mean training.steps or validation.steps?"},
      {{"--xyzzy.plugh=3"},
       "unknown key xyzzy.plugh (command line); the sections are job, run, model, data, training, activation_checkpoint, "
       "optimizer, lr_scheduler, validation, metrics, checkpoint, parallelism"},
      {{"--training.steps="}, "training.steps =  (command line) must be a whole number"},
      {{"--training.steps"}, "training.steps (command line) needs a value: --training.steps VALUE"},
      {{"--training.steps", "--run.ranks=2"}, "training.steps (command line) needs a value: --training.steps VALUE"},
      {{"--training.no-steps"}, "unknown key training.no_steps (command line); [training] has steps, seq_len, global_batch_size, "
       "local_batch_size, dtype, max_norm, seed, seed_weights"},
      {{"training.steps=-4"}, "training.steps = -4 (command line) must be at least 1"},
      {{"metrics.enable_tensorboard=maybe"}, "metrics.enable_tensorboard = maybe (command line) must be true or false"},
      {{"parallelism.tensor_parallel_mesh=1,2"},
       "parallelism.tensor_parallel_mesh = 1,2 (command line) must be 3 whole numbers, as in 2,2,1"},
      {{"job.description=\xff"}, "job.description = \xff (command line) is not UTF-8 text"},
      {{"steps=3"}, "steps=3 (command line) is no setting; settings look like training.steps=20"},
  };
  for (const auto& [overrides, message] : table) EXPECT_EQ(error_of("", overrides), message);
}

TEST(Config, KeysThatContradictEachOtherAreRefused) {
  const BadFile table[] = {
      {"[training]\nlocal_batch_size = 64",
       "training.local_batch_size = 64 (run.toml:2) is more than training.global_batch_size = 32 (default); set it to 32 "
       "or less"},
      {"[training]\nsteps = 5\n[lr_scheduler]\nwarmup_steps = 6",
       "lr_scheduler.warmup_steps = 6 (run.toml:4) is more than training.steps = 5 (run.toml:2); set it to 5 or less"},
      {"[training]\nseq_len = 2048",
       "training.seq_len = 2048 (run.toml:2) is more than model.max_position_embeddings = 1024 (default); shorten the "
       "one to 1024 or raise the other to 2048"},
      {"[model]\nnum_key_value_heads = 3",
       "model.num_key_value_heads = 3 (run.toml:2) does not divide model.num_attention_heads = 8 (default); try 1, 2, 4 "
       "or 8"},
      {"[model]\nnum_attention_heads = 6\nnum_key_value_heads = 3\nhidden_size = 20",
       "model.num_attention_heads = 6 (run.toml:2) does not divide model.hidden_size = 20 (run.toml:4); try 1, 2, 4, 5, "
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
       "parallelism.pipeline_parallel_degree = -1 (run.toml:2) and parallelism.data_parallel_degree = -1 (default): only "
       "one degree can be the rest of the ranks; give the other a number"},
  };
  for (const BadFile& bad : table) EXPECT_EQ(check_error_of(bad.text), bad.message) << bad.text;
}

TEST(Config, WhatIsNotBuiltIsRefusedWithTheLegalValue) {
  constexpr const char* kDataOnly = ": this version of Orthant runs data parallelism only; set it to ";
  const std::pair<std::string, std::string> table[] = {
      {"run.device=cuda", "run.device = \"cuda\" (command line): this build of Orthant has no CUDA; set it to \"cpu\""},
      {"run.transport=ucx",
       "run.transport = \"ucx\" (command line): this build of Orthant has no UCX; set it to \"auto\" or \"gloo\""},
      {"run.transport=nccl",
       "run.transport = \"nccl\" (command line): this build of Orthant has no NCCL; set it to \"auto\" or \"gloo\""},
      {"model.architecture=gpt2", "model.architecture = \"gpt2\" (command line): this version of Orthant trains LLaMA "
       "models only; set it to \"llama\""},
      {"model.objective=masked", "model.objective = \"masked\" (command line): this version of Orthant trains causal "
       "language models only; set it to \"causal\""},
      {"parallelism.zero_stage=1", "parallelism.zero_stage = 1 (command line): this version of Orthant keeps gradients "
       "and optimizer state whole on every rank; set it to 0"},
      {"parallelism.tensor_parallel_degree=3",
       fmt::format("parallelism.tensor_parallel_degree = 3 (command line){}1", kDataOnly)},
      {"parallelism.context_parallel_ulysses=2",
       fmt::format("parallelism.context_parallel_ulysses = 2 (command line){}1", kDataOnly)},
      {"parallelism.context_parallel_ring=2",
       fmt::format("parallelism.context_parallel_ring = 2 (command line){}1", kDataOnly)},
      {"parallelism.pipeline_parallel_degree=2",
       fmt::format("parallelism.pipeline_parallel_degree = 2 (command line){}1", kDataOnly)},
      {"parallelism.expert_parallel_degree=2",
       fmt::format("parallelism.expert_parallel_degree = 2 (command line){}1", kDataOnly)},
      {"parallelism.tensor_parallel_kind=2d",
       fmt::format("parallelism.tensor_parallel_kind = \"2d\" (command line){}\"1d\"", kDataOnly)},
      {"parallelism.tensor_parallel_mesh=2,2,1",
       fmt::format("parallelism.tensor_parallel_mesh = [2, 2, 1] (command line){}[1, 1, 1]", kDataOnly)},
      {"parallelism.vocabulary_parallel=naive",
       fmt::format("parallelism.vocabulary_parallel = \"naive\" (command line){}\"none\"", kDataOnly)},
      {"parallelism.pipeline_parallel_stages_per_rank=2",
       fmt::format("parallelism.pipeline_parallel_stages_per_rank = 2 (command line){}0", kDataOnly)},
      {"parallelism.context_parallel_attention=linformer",
       "parallelism.context_parallel_attention = \"linformer\" (command line): this version of Orthant computes full "
       "attention only; set it to \"ring_attention\""},
  };
  for (const auto& [override, message] : table) EXPECT_EQ(check_error_of("", {override}), message);
  const Abilities all = {.cuda = true, .ucx = true, .nccl = true};
  EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.transport=nccl"}, all), "no error");
  EXPECT_EQ(check_error_of("", {"run.transport=ucx"}, all), "no error");
  EXPECT_EQ(check_error_of("", {"run.transport=nccl"}, all),
            "run.transport = \"nccl\" (command line): NCCL needs run.device = \"cuda\"; set it to \"auto\" or \"gloo\"");
}

TEST(Config, AModelDirectoryNeedsItsConfig) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "orthant_config_test_model";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string text = fmt::format("[model]\nfrom = '{}'", folder.string());
  EXPECT_EQ(check_error_of(text), fmt::format("model.from = \"{}\" (run.toml:2) holds no config.json; name a Hugging "
                                              "Face directory or a checkpoint", folder.string()));
  std::ofstream(folder / "config.json") << "{}";
  EXPECT_EQ(check_error_of(text), "no error");
  std::filesystem::remove_all(folder);
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
  EXPECT_THROW(
      {
        try {
          load_config("/nonexistent/run.toml", {});
        } catch (const ConfigError& error) {
          EXPECT_STREQ(error.what(), "cannot read the run file /nonexistent/run.toml: No such file or directory; "
                                     "examples/ holds run files to start from");
          throw;
        }
      },
      ConfigError);
  EXPECT_THROW(load_config(testing::TempDir(), {}), ConfigError);
  EXPECT_TRUE(load_config("", {}) == Config{});
}

}  // namespace
}  // namespace orthant

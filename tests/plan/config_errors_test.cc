// Bad run files and command lines: the exact words of the refusals, and that nothing else ever comes out.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/errors.h"
#include "plan/config.h"

namespace orthant {
namespace {

using namespace std::string_view_literals;
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
       "run.toml:1:2: unknown section [xyzzy]; the sections are job, run, model, data, training, "
       "activation_checkpoint, "
       "optimizer, lr_scheduler, validation, metrics, checkpoint, parallelism"},
      {"[validation]\nplugh = 3", "run.toml:2:1: unknown key validation.plugh; [validation] has freq, steps"},
      {"seq_len = 3", "run.toml:1:1: key seq_len stands outside of any section; did you mean training.seq_len?"},
      {"training = 3", "run.toml:1:1: training is a section; write [training]"},
      {"[[training]]\nsteps = 3", "run.toml:1:3: training is a section; write [training]"},
      {"[training]\nsteps = \"ten\"", "training.steps = 'ten' (run.toml:2:9) must be a whole number"},
      {"[training]\nsteps = 2.5", "training.steps = 2.5 (run.toml:2:9) must be a whole number"},
      {"[training]\nsteps = 0", "training.steps = 0 (run.toml:2:9) must be at least 1"},
      {"[training]\nseed = -1", "training.seed = -1 (run.toml:2:8) must be at least 0"},
      {"[training]\nseed = 99999999999999999999",
       "run.toml:2:28: Error while parsing decimal integer: "
       "'99999999999999999999' is not representable in 64 bits"},
      {"[model]\ndropout = 1.0", "model.dropout = 1.0 (run.toml:2:11) must be at least 0 and below 1"},
      {"[model]\nrope_theta = 0", "model.rope_theta = 0 (run.toml:2:14) must be above 0"},
      {"[model]\nrope_theta = nan", "model.rope_theta = nan (run.toml:2:14) is not a number"},
      {"[optimizer]\nlr = inf", "optimizer.lr = inf (run.toml:2:6) is not finite"},
      {"[optimizer]\nname = \"adam\"",
       "optimizer.name = 'adam' (run.toml:2:8) must be \"adamw\"; did you mean \"adamw\"?"},
      {"[training]\ndtype = \"fp32\"",
       "training.dtype = 'fp32' (run.toml:2:9) must be \"float32\", \"bfloat16\" or "
       "\"float64\""},
      {"[training]\ndtype = \"bfloat\"",
       "training.dtype = 'bfloat' (run.toml:2:9) must be \"float32\", \"bfloat16\" or "
       "\"float64\"; did you mean \"bfloat16\"?"},
      {"[data]\ntokenizer = \"train:0\"",
       "data.tokenizer = 'train:0' (run.toml:2:13) must be \"byte\", FILE.model or "
       "train:N"},
      {"[data]\npath = [1, 2]", "data.path = [ 1, 2 ] (run.toml:2:8) must be a list of strings"},
      {"[data]\nvalidation = true", "data.validation = true (run.toml:2:14) must be a number or a list of files"},
      {"[data]\nvalidation = 1.0", "data.validation = 1.0 (run.toml:2:14) must be at least 0 and below 1"},
      {"[metrics]\nenable_tensorboard = 1", "metrics.enable_tensorboard = 1 (run.toml:2:22) must be true or false"},
      {"[parallelism]\nzero_stage = 4", "parallelism.zero_stage = 4 (run.toml:2:14) must be 0 to 3"},
      {"[parallelism]\npipeline_parallel_degree = 0",
       "parallelism.pipeline_parallel_degree = 0 (run.toml:2:28) must be at least 1, or -1"},
      {"[parallelism]\ntensor_parallel_mesh = [1, 2]",
       "parallelism.tensor_parallel_mesh = [ 1, 2 ] (run.toml:2:24) must be a list of 3 whole numbers, as in [2, 2, "
       "1]"},
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
      {{"--trainig.steps=3"}, "unknown key trainig.steps (command line); did you mean training.steps?"},
      {{"training.steps=ten"}, "training.steps = ten (command line) must be a whole number"},
      {{"training.steps=2.5"}, "training.steps = 2.5 (command line) must be a whole number"},
      {{"training.steps=99999999999999999999"},
       "training.steps = 99999999999999999999 (command line) must fit 64 bits"},
      {{"--xyzzy.steps=3"}, "unknown key xyzzy.steps (command line); did you mean training.steps or validation.steps?"},
      {{"--xyzzy.plugh=3"},
       "unknown key xyzzy.plugh (command line); the sections are job, run, model, data, training, "
       "activation_checkpoint, "
       "optimizer, lr_scheduler, validation, metrics, checkpoint, parallelism"},
      {{"--training.steps="}, "training.steps =  (command line) must be a whole number"},
      {{"--training.steps"}, "training.steps (command line) needs a value: --training.steps VALUE"},
      {{"--training.steps", "--run.ranks=2"}, "training.steps (command line) needs a value: --training.steps VALUE"},
      {{"--training.no-steps"},
       "unknown key training.no_steps (command line); [training] has steps, seq_len, global_batch_size, "
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
       "training.local_batch_size = 64 (run.toml:2) is more than training.global_batch_size = 32 (default); set it to "
       "32 "
       "or less"},
      {"[training]\nsteps = 5\n[lr_scheduler]\nwarmup_steps = 6",
       "lr_scheduler.warmup_steps = 6 (run.toml:4) is more than training.steps = 5 (run.toml:2); set it to 5 or less"},
      {"[training]\nseq_len = 2048",
       "training.seq_len = 2048 (run.toml:2) is more than model.max_position_embeddings = 1024 (default); shorten the "
       "one to 1024 or raise the other to 2048"},
      {"[model]\nnum_key_value_heads = 3",
       "model.num_key_value_heads = 3 (run.toml:2) does not divide model.num_attention_heads = 8 (default); try 1, 2, "
       "4 "
       "or 8"},
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

TEST(Config, WhatIsNotBuiltIsRefusedWithTheLegalValue) {
  constexpr const char* kDataOnly = ": this version of Orthant runs data parallelism only; set it to ";
  const std::pair<std::string, std::string> table[] = {
      {"run.device=cuda", "run.device = \"cuda\" (command line): this build of Orthant has no CUDA; set it to \"cpu\""},
      {"run.transport=ucx",
       "run.transport = \"ucx\" (command line): this build of Orthant has no UCX; set it to \"auto\" or \"gloo\""},
      {"run.transport=nccl",
       "run.transport = \"nccl\" (command line): this build of Orthant has no NCCL; set it to \"auto\" or \"gloo\""},
      {"model.architecture=gpt2",
       "model.architecture = \"gpt2\" (command line): this version of Orthant trains LLaMA "
       "models only; set it to \"llama\""},
      {"model.objective=masked",
       "model.objective = \"masked\" (command line): this version of Orthant trains causal "
       "language models only; set it to \"causal\""},
      {"parallelism.zero_stage=1",
       "parallelism.zero_stage = 1 (command line): this version of Orthant keeps gradients "
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
      {"parallelism.context_parallel_attention=linformer",
       "parallelism.context_parallel_attention = \"linformer\" (command line): this version of Orthant computes full "
       "attention only; set it to \"ring_attention\""},
  };
  for (const auto& [override, message] : table) EXPECT_EQ(check_error_of("", {override}), message);
  const Abilities all = {.cuda = true, .ucx = true, .nccl = true};
  for (const std::string transport : {"auto", "nccl", "ucx"}) {
    EXPECT_EQ(check_error_of("", {"run.device=cuda", "run.transport=" + transport}, all),
              "run.device = \"cuda\" (command line): this version of Orthant trains on the CPU only; set it to "
              "\"cpu\"");
  }
  EXPECT_EQ(check_error_of("", {"run.transport=ucx"}, all),
            "run.transport = \"ucx\" (command line): this version of Orthant talks over Gloo only; set it to \"auto\" "
            "or \"gloo\"");
  EXPECT_EQ(
      check_error_of("", {"run.transport=nccl"}, all),
      "run.transport = \"nccl\" (command line): NCCL needs run.device = \"cuda\"; set it to \"auto\" or \"gloo\"");
}

TEST(Config, SettingsOfADegreeOfOneAreRefused) {
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
  };
  for (const auto& [key, value, degree, legal] : table) {
    EXPECT_EQ(check_error_of(fmt::format("[parallelism]\n{} = {}", key, value)),
              fmt::format("parallelism.{} = {} (run.toml:2): it belongs to parallelism.{} = 1 (default) and changes "
                          "nothing while that is 1; set it to {}",
                          key, value, degree, legal));
    EXPECT_EQ(check_error_of(fmt::format("[parallelism]\n{} = {}", key, legal)), "no error");
    // With a degree of its own it is not the setting that is refused.
    const std::string wider = check_error_of(fmt::format("[parallelism]\n{} = {}\n{} = 2", key, value, degree));
    EXPECT_TRUE(wider.starts_with("parallelism." + degree)) << wider;
  }
}

TEST(Config, AModelDirectoryNeedsItsConfig) {
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

// Each mutation gives a Config that prints and reads back equal, or a ConfigError; never another exception or a crash.
TEST(Config, MutatedFilesAreReadOrRefused) {
  std::mt19937_64 random(5);
  const std::string good = print_config(Config{});
  constexpr std::string_view letters = "[]{}=.,\"'#\\\n\t -_019eEnaifx\x00\xff\xc3\xa9:T"sv;
  int refused = 0, read = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = good.substr(0, i % 3 == 0 ? random() % good.size() : good.size());
    for (uint64_t edits = random() % 4 + 1; edits > 0 && !text.empty(); --edits) {
      const size_t at = random() % text.size();
      const char letter = letters[random() % letters.size()];
      if (random() % 2 == 0)
        text[at] = letter;
      else if (random() % 2 == 0)
        text.insert(at, 1, letter);
      else
        text.erase(at, random() % 20);
    }
    try {
      const Config config = parse_config(text, "mutated.toml", {});
      ASSERT_TRUE(parse_config(print_config(config), "again.toml", {}) == config) << text;
      ++read;
    } catch (const ConfigError& error) {
      ASSERT_NE(std::string_view(error.what()).find("mutated.toml:"), std::string_view::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(read, 150);
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace orthant

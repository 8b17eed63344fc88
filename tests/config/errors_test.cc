// Bad run files and command lines: the exact text of the refusals. No input causes any other exception or a crash.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "base/errors.h"
#include "config/config.h"

namespace orthant::config_errors_test {
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

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
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
      {"[activation_checkpoint]\noperations = [\"norm\"]",
       "activation_checkpoint.operations = [ 'norm' ] (run.toml:2:14) must be \"attention\", \"mlp\", \"norms\" or "
       "\"swiglu\"; did you mean \"norms\"?"},
      {"[training]\nsteps = \"ten\"", "training.steps = 'ten' (run.toml:2:9) must be a whole number"},
      {"[training]\nsteps = 2.5", "training.steps = 2.5 (run.toml:2:9) must be a whole number"},
      {"[training]\nsteps = 0", "training.steps = 0 (run.toml:2:9) must be at least 1"},
      {"[training]\nseed = -1", "training.seed = -1 (run.toml:2:8) must be at least 0"},
      {"[training]\nseed = 99999999999999999999",
       "run.toml:2:28: Error while parsing decimal integer: "
       "'99999999999999999999' is not representable in 64 bits"},
      {"[model]\ndropout = 1.0", "model.dropout = 1.0 (run.toml:2:11) must be at least 0 and below 1"},
      {"[model]\nfinal_logit_softcapping = -30.0",
       "model.final_logit_softcapping = -30.0 (run.toml:2:27) must be at least 0"},
      {"[training]\nlabel_smoothing = 1.5", "training.label_smoothing = 1.5 (run.toml:2:19) must be 0 to 1"},
      {"[training]\nz_loss = -1e-4", "training.z_loss = -0.0001 (run.toml:2:10) must be at least 0"},
      {"[training]\nz_loss = inf", "training.z_loss = inf (run.toml:2:10) is not finite"},
      {"[model]\nrope_theta = 0", "model.rope_theta = 0 (run.toml:2:14) must be above 0"},
      {"[model]\nrope_theta = nan", "model.rope_theta = nan (run.toml:2:14) is not a number"},
      {"[optimizer]\nlr = inf", "optimizer.lr = inf (run.toml:2:6) is not finite"},
      {"[optimizer]\nname = \"adam\"",
       "optimizer.name = 'adam' (run.toml:2:8) must be \"adamw\", \"sgd\" or \"muon\"; did you mean \"adamw\"?"},
      {"[parallelism]\ntensor_parallel_kind = \"3d\"",
       "parallelism.tensor_parallel_kind = '3d' (run.toml:2:24) must be \"1d\", \"2d\", \"2.5d\" or \"auto\""},
      {"[parallelism]\ntensor_parallel_kind = 2.5d # Tesseract",
       "run.toml:2:27: Error while parsing floating-point: expected decimal digit, saw 'd'; text needs quotes: "
       "tensor_parallel_kind = \"2.5d\""},
      {"[training]\ndtype = \"fp32\"",
       "training.dtype = 'fp32' (run.toml:2:9) must be \"float32\", \"bfloat16\" or "
       "\"float64\""},
      {"[training]\ndtype = \"bfloat\"",
       "training.dtype = 'bfloat' (run.toml:2:9) must be \"float32\", \"bfloat16\" or "
       "\"float64\"; did you mean \"bfloat16\"?"},
      {"[data]\ntokenizer = \"train:0\"",
       "data.tokenizer = 'train:0' (run.toml:2:13) must be \"byte\", FILE.json, FILE.model "
       "or train:N"},
      {"[job]\ndump_folder = \"a\\u0000b\"",
       "job.dump_folder = \"a\\u0000b\" (run.toml:2:15) must not contain a NUL character"},
      {"[data]\npath = [\"a\", \"b\\u0000c\"]",
       "data.path = [ 'a', \"b\\u0000c\" ] (run.toml:2:8) must not contain a NUL character"},
      {"[data]\npath = [1, 2]", "data.path = [ 1, 2 ] (run.toml:2:8) must be a list of strings"},
      {"[data]\nvalidation = true",
       "data.validation = true (run.toml:2:14) must be a number, a list of files, or a table of such lists"},
      {"[data]\nvalidation = {}",
       "data.validation = {} (run.toml:2:14) must be a number, a list of files, or a table of such lists"},
      {"[data]\nvalidation = {\"a b\" = \"x\"}",
       "data.validation = { 'a b' = 'x' } (run.toml:2:14) must name its sets with letters, digits, '-', '_' and '.'"},
      {"[data]\nweights = [1, 0]", "data.weights = [ 1, 0 ] (run.toml:2:11) must be above 0"},
      {"[data]\nweights = [\"a\"]",
       "data.weights = [ 'a' ] (run.toml:2:11) must be a list of numbers, as in [0.7, 0.3]"},
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
      {"a" + repeated(".a", 30'000) + " = 1", "run.toml:1: a key must have at most 32 parts"},
      {"[training]\n[a" + repeated(".a", 30'000) + "]", "run.toml:2: a key must have at most 32 parts"},
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
       "local_batch_size, dtype, max_norm, clip_by, on_nonfinite, max_skipped_steps, skip_above_norm, label_smoothing, "
       "z_loss, seed, seed_weights"},
      {{"training.steps=-4"}, "training.steps = -4 (command line) must be at least 1"},
      {{"metrics.enable_tensorboard=maybe"}, "metrics.enable_tensorboard = maybe (command line) must be true or false"},
      {{"parallelism.tensor_parallel_mesh=1,2"},
       "parallelism.tensor_parallel_mesh = 1,2 (command line) must be 3 whole numbers, as in 2,2,1"},
      {{"job.description=\xff"}, "job.description = \xff (command line) must be UTF-8 text"},
      {{"steps=3"}, "steps=3 (command line) is no setting; settings look like training.steps=20"},
  };
  for (const auto& [overrides, message] : table) EXPECT_EQ(error_of("", overrides), message);
}

// Each mutation gives a Config that prints and reads back equal, or a ConfigError; never another exception or a crash.
TEST(Config, MutatedFilesAreReadOrRefused) {
  std::mt19937_64 random(5);
  const std::string good = print_config(Config{});
  constexpr std::string_view letters = "[]{}=.,\"'#\\\n\t -_019eEnaifx\x00\xff\xc3\xa9:T"sv;
  int refused = 0, read = 0;
  for (int i = 0; i < 3000; ++i) {
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
}  // namespace orthant::config_errors_test

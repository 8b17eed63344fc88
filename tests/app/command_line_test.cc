// Parsing of argv: the meaning of each command line, and the exact error for a wrong one.
#include "app/command_line.h"

#include <gtest/gtest.h>

#include "report/progress_bar.h"
#include "base/text.h"
#include "config/config.h"

namespace orthant::command_line_test {
namespace {

using Words = std::vector<std::string>;

std::string error_of(const Words& arguments) {
  try {
    parse_command_line(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string text_of(const Words& arguments) { return std::get<PrintText>(parse_command_line(arguments)).text; }

TEST(CommandLine, Train) {
  const auto arguments = std::get<TrainArguments>(
      parse_command_line({"train", "--training.steps", "20", "run.toml", "--resume", "run.ranks=2", "--print-config"}));
  EXPECT_EQ(arguments.run_file, "run.toml");
  EXPECT_EQ(arguments.overrides, (Words{"--training.steps", "20", "run.ranks=2"}));
  EXPECT_TRUE(arguments.resume);
  EXPECT_TRUE(arguments.print_config);
  EXPECT_FALSE(arguments.dry_run);
  EXPECT_TRUE(std::get<TrainArguments>(parse_command_line({"train", "r", "--dry-run"})).dry_run);
  EXPECT_EQ(std::get<TrainArguments>(parse_command_line({"train", "r", "--restarts", "3"})).restarts, 3);
  EXPECT_THROW(parse_command_line({"train", "r", "--restarts", "-1"}), UsageError);
}

TEST(CommandLine, PlanAndVerify) {
  const auto plan = std::get<PlanArguments>(parse_command_line({"plan", "run.toml", "--json", "--svg", "a.svg"}));
  EXPECT_TRUE(plan.json);
  EXPECT_EQ(plan.svg, "a.svg");
  const auto verify = std::get<VerifyArguments>(parse_command_line({"verify", "run.toml", "--steps=5"}));
  EXPECT_EQ(verify.steps, 5);
  EXPECT_FALSE(verify.json);
  EXPECT_EQ(std::get<VerifyArguments>(parse_command_line({"verify", "run.toml"})).steps, 3);
}

// Short names of keys set the keys, and the words of the keys beat them.
TEST(CommandLine, PlansAModelOnHardware) {
  const auto plan = std::get<PlanArguments>(parse_command_line(
      {"plan", "--hf", "model", "--ranks", "64", "--seq-len", "8192", "--global-batch", "256", "--hardware", "b200-8x",
       "run.ranks=32"}));
  EXPECT_EQ(plan.overrides, (Words{"run.hardware=b200-8x", "run.ranks=64", "training.seq_len=8192",
                                   "training.global_batch_size=256", "run.ranks=32"}));
  for (const Words& options : {Words{"--hardware", ""}, Words{"--svg", ""}, Words{"--search", "--write", ""}}) {
    Words words = {"plan", "--hf", "model"};
    words.insert(words.end(), options.begin(), options.end());
    EXPECT_NE(error_of(words).find("is empty"), std::string::npos) << options[0];
  }
}

TEST(CommandLine, PlanShowsNamedSections) {
  const auto plan = std::get<PlanArguments>(parse_command_line({"plan", "--show", "memory,layouts", "run.toml"}));
  EXPECT_EQ(plan.show, (Words{"memory", "layouts"}));
  EXPECT_EQ(plan.run_file, "run.toml");
  EXPECT_NE(error_of({"plan", "run.toml", "--show", "memroy"}).find("memroy"), std::string::npos);
  EXPECT_NE(error_of({"plan", "run.toml", "--write", "a.toml"}).find("--write requires --search"), std::string::npos);
}

TEST(CommandLine, TheOtherCommands) {
  const auto tokenize = std::get<TokenizeArguments>(
      parse_command_line({"tokenize", "a.txt", "b*.txt", "--output", "out/ab", "--tokenizer", "train:500"}));
  EXPECT_EQ(tokenize.inputs, (Words{"a.txt", "b*.txt"}));
  EXPECT_EQ(tokenize.output, "out/ab");
  EXPECT_EQ(tokenize.tokenizer, "train:500");
  const auto generate = std::get<GenerateArguments>(
      parse_command_line({"generate", "runs/a", "--prompt", "training.steps=5 is", "--max-new-tokens", "7",
                          "--temperature", "0", "--top-p", "0.5", "--seed", "9"}));
  EXPECT_EQ(generate.directory, "runs/a");
  EXPECT_EQ(generate.prompt, "training.steps=5 is");
  EXPECT_EQ(generate.max_new_tokens, 7);
  EXPECT_EQ(generate.temperature, 0.0);
  EXPECT_EQ(generate.top_p, 0.5);
  EXPECT_EQ(generate.seed, 9);
  const auto checkpoint = std::get<CheckpointArguments>(
      parse_command_line({"checkpoint", "diff", "runs/a", "runs/b", "--weights", "--json"}));
  EXPECT_EQ(checkpoint.action, "diff");
  EXPECT_EQ(checkpoint.directories, (Words{"runs/a", "runs/b"}));
  EXPECT_TRUE(checkpoint.weights_only && checkpoint.json);
  EXPECT_EQ(std::get<ReportArguments>(parse_command_line({"report", "runs/a"})).dump_folder, "runs/a");
  EXPECT_TRUE(std::get<DoctorArguments>(parse_command_line({"doctor", "--json"})).json);
  EXPECT_EQ(std::get<CalibrateArguments>(parse_command_line({"calibrate", "--write", "a.toml"})).write, "a.toml");
}

TEST(CommandLine, MistakesAreNamedWithTheWayOut) {
  EXPECT_EQ(error_of({"train", "run.toml", "--resum"}),
            "unknown option --resum; did you mean --resume?\nusage: orthant train RUN_FILE [OPTIONS] [SETTINGS]\n"
            "help:  orthant train --help");
  EXPECT_EQ(error_of({"trian"}), "unknown command trian; did you mean train?\nhelp:  orthant --help");
  const std::pair<Words, std::string> table[] = {
      {{"xyzzy"},
       "unknown command xyzzy; the commands are train, plan, verify, tokenize, generate, convert, checkpoint, "
       "report, compare, calibrate, doctor, completion"},
      {{"checkpoint", "list"}, "DIR is required"},
      {{"checkpoint", "lost", "runs/a"}, "ACTION: lost not in {list,verify,diff}"},
      {{"checkpoint", "list", ""}, "DIR: is empty; name one, such as runs/jargon"},
      {{"train"}, "RUN_FILE is required"},
      {{"train", ""}, "RUN_FILE: is empty; name one, such as examples/jargon.toml"},
      {{"plan", "", "--json"}, "RUN_FILE: is empty; name one, such as examples/jargon.toml"},
      {{"generate", ""}, "DIRECTORY: is empty; name one, such as runs/jargon"},
      {{"report", ""}, "RUN_DIR: is empty; name one, such as runs/jargon"},
      {{"train", "--xyzzy"}, "unknown option --xyzzy"},
      {{"train", "a.toml", "b.toml"}, "unexpected argument b.toml"},
      {{"train", "a.toml", "--training.stepz=3"},
       "unknown key training.stepz (command line); did you mean training.steps?"},
      {{"train", "a.toml", "training.steps=0"}, "training.steps = 0 (command line) must be at least 1"},
      {{"calibrate", "--write", ""}, "--write: is empty; name one, such as machine.toml"},
      {{"calibrate", "machine.toml"}, "unexpected argument machine.toml"},
      {{"doctor", "training.steps=1"}, "unexpected argument training.steps=1"},
      {{"tokenize", "a.txt"}, "--output is required"},
      {{"plan", "a.toml", "--svg"}, "--svg: 1 required FILE missing"},
      {{"generate", "d", "--top-p", "1.5"}, "--top-p: 1.5 must be a number above 0 and at most 1"},
      {{"generate", "d", "--seed", "x"}, "--seed: x must be a whole number from 0 to 9223372036854775807"},
      {{"generate", "d", "--seed", "1.5"}, "--seed: 1.5 must be a whole number from 0 to 9223372036854775807"},
      {{"generate", "d", "--seed", "9223372036854775808"},
       "--seed: 9223372036854775808 must be a whole number from 0 to 9223372036854775807"},
      {{"verify", "r", "--steps", "0"}, "--steps: 0 must be a whole number from 1 to 9223372036854775807"},
  };
  for (const auto& [arguments, message] : table) EXPECT_EQ(first_line(error_of(arguments)), message);
}

TEST(CommandLine, AShortNameOffersTheFullKeys) {
  const std::pair<Words, std::string> table[] = {
      {{"train", "run.toml", "--steps", "20"},
       "unknown option --steps; did you mean --training.steps or --validation.steps?"},
      {{"train", "--steps", "20", "run.toml"},
       "unknown option --steps; did you mean --training.steps or --validation.steps?"},
      {{"train", "run.toml", "--lr=1e-3"}, "unknown option --lr=1e-3; did you mean --optimizer.lr?"},
      {{"plan", "run.toml", "--hidden-size", "64"}, "unknown option --hidden-size; did you mean --model.hidden_size?"},
      {{"verify", "run.toml", "--hidden_sise=64"},
       "unknown option --hidden_sise=64; did you mean --model.hidden_size?"},
      {{"train", "run.toml", "lr=1e-3"}, "unexpected argument lr=1e-3; did you mean optimizer.lr?"},
      {{"train", "run.toml", "--resumes"}, "unknown option --resumes; did you mean --resume?"},
      {{"generate", "runs/a", "--lr", "1"}, "unknown option --lr"},  // this command takes no keys
  };
  for (const auto& [arguments, message] : table) EXPECT_EQ(first_line(error_of(arguments)), message);
  for (const std::string& key : config_keys()) {
    const std::string name = key.substr(key.find('.') + 1);
    const std::string message = first_line(error_of({"train", "run.toml", "--" + name, "1"}));
    EXPECT_NE((message + " ").find("--" + key), std::string::npos) << message;
  }
}

TEST(CommandLine, AnUnquotedGlobIsRecognized) {
  const std::string quote = "; the shell expanded a glob to several names: put it in quotes, --data.path 'books/*.txt'";
  EXPECT_EQ(first_line(error_of({"train", "run.toml", "--data.path", "books/a.txt", "books/b.txt", "books/c.txt"})),
            "unexpected argument books/b.txt" + quote);
  EXPECT_EQ(first_line(error_of({"train", "--data.path", "books/a.txt", "books/b.txt", "run.toml"})),
            "unexpected argument run.toml" + quote);
  EXPECT_EQ(first_line(error_of({"plan", "run.toml", "--data.validation", "a.txt", "b.txt", "--json"})),
            "unexpected argument b.txt; the shell expanded a glob to several names: put it in quotes, "
            "--data.validation '*.txt'");
  EXPECT_EQ(first_line(error_of({"train", "run.toml", "more.toml", "--data.path", "books/a.txt"})),
            "unexpected argument more.toml");
}

TEST(CommandLine, HelpFitsOneScreen) {
  for (const std::string command : {"train", "plan", "verify"}) {
    const std::string text = text_of({command, "--help"});
    EXPECT_LE(split(std::string(trim(text)), '\n').size(), 40U) << text;
    EXPECT_NE(text.find("--training.steps "), std::string::npos) << text;
    EXPECT_NE(text.find("  --help-all "), std::string::npos) << text;
  }
  for (const std::string& line : split(text_of({"train", "--help"}), '\n')) EXPECT_LE(line.size(), 80U) << line;
  const std::string all = text_of({"train", "--help-all"});
  for (const std::string& key : config_keys()) EXPECT_NE(all.find("--" + key + " "), std::string::npos) << key;
  EXPECT_NE(all.find("  --resume "), std::string::npos) << all;
  EXPECT_EQ(text_of({"report", "--help-all"}), text_of({"report", "--help"}));
}

TEST(CommandLine, AloneItShowsTheCommandsAndAnExample) {
  const std::string text = text_of({});
  EXPECT_NE(text.find("\n  train       train a model on text, on the ranks that the run file sets\n"),
            std::string::npos);
  EXPECT_NE(text.find("example: orthant train examples/jargon.toml\n"), std::string::npos);
  EXPECT_LE(split(text, '\n').size(), 20U);
  EXPECT_EQ(text_of({"--help"}), text);
  EXPECT_TRUE(text_of({"--version"}).starts_with("orthant "));
  EXPECT_EQ(text_of({"reference"}), config_reference());
  EXPECT_TRUE(text_of({"manual"}).starts_with(".\\\" Written by"));
}

TEST(CommandLine, EveryCommandHasHelpWithAnExample) {
  for (const std::string name : {"train", "plan", "verify", "tokenize", "generate", "checkpoint", "report", "compare",
                                 "calibrate", "doctor", "completion"}) {
    const std::string text = text_of({name, "--help"});
    EXPECT_NE(text.find("usage: orthant " + name), std::string::npos) << text;
    EXPECT_NE(text.find("\nexamples:\n"), std::string::npos) << text;
    EXPECT_NE(text.find("orthant " + name, text.find("\nexamples:\n")), std::string::npos) << text;
    EXPECT_NE(text.find("-h, --help"), std::string::npos) << text;
    EXPECT_EQ(text_of({name, "-h"}), text);
    for (const std::string& line : split(text, '\n')) EXPECT_LE(line.size(), 100U) << line;
  }
  const std::string train = text_of({"train", "--help"});
  EXPECT_NE(train.find("  --resume              resume from the newest checkpoint, or begin a run\n"),
            std::string::npos)
      << train;
  EXPECT_EQ(text_of({"report", "--help"}).find("--training.steps"), std::string::npos);
  EXPECT_NE(text_of({"--help-all"}).find("--temperature T"), std::string::npos);
}

TEST(ProgressBar, Line) {
  const BarState state = {
      .label = "tokenizing", .done = 786432, .total = 1048576, .tokens = 512000, .elapsed_s = 12, .per_s = 65536};
  EXPECT_EQ(bar_line(state, {}), "tokenizing:  75%|#######   | 768.0 KiB/1.0 MiB, 512k tokens [12s<4s, 64.0 KiB/s]");
  EXPECT_EQ(bar_line(state, {.unicode = true}),
            "tokenizing:  75%|\u2588\u2588\u2588\u2588\u2588\u2588\u2588\u258c  | 768.0 KiB/1.0 MiB, 512k tokens "
            "[12s<4s, 64.0 KiB/s]");
  EXPECT_EQ(bar_line(state, {.columns = 80}), "tokenizing:  75% 768.0 KiB/1.0 MiB, 512k tokens [12s<4s, 64.0 KiB/s]");
  const BarState none = {.label = "x", .tokens = 0};
  EXPECT_EQ(bar_line(none, {}), "x:   0%|          | 0 B/0 B, 0 tokens [0s<?, ?]");
  EXPECT_EQ(bar_line({.label = "x"}, {}), "x:   0%|          | 0 B/0 B [0s<?, ?]");
  const BarState steps = {.label = "verifying", .done = 3, .total = 6, .unit = "steps", .elapsed_s = 6, .per_s = 0.5};
  EXPECT_EQ(bar_line(steps, {}), "verifying:  50%|#####     | 3/6 steps [6s<6s, 0.5 steps/s]");
  const BarState all = {.label = "x", .done = 5, .total = 5, .per_s = 1};
  EXPECT_NE(bar_line(all, {}).find("100%|##########|"), std::string::npos);
}

}  // namespace
}  // namespace orthant::command_line_test

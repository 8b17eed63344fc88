#include "app/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>

#include "base/text.h"
#include "plan/config.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

// What a command is called, what its help shows, and which options fill its struct.
struct CommandEntry {
  std::string name, usage, summary;
  Words examples;
  bool takes_run_file = false;
  std::function<void(CLI::App&, Command&)> define;
};

// A validator in our words: "x must be a number at least 1".
CLI::Validator number(bool (*holds)(double), const std::string& text) {
  return CLI::Validator(
      [=](std::string& word) {
        double value = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        const bool good = error == std::errc() && end == word.data() + word.size() && holds(value);
        return good ? std::string() : word + " must be a number " + text;
      },
      "");
}

// The same for whole numbers; CLI11 would take what does not fit for the largest that does.
CLI::Validator whole_number(int64_t least) {
  return CLI::Validator(
      [=](std::string& word) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
        const bool good = error == std::errc() && end == word.data() + word.size() && value >= least;
        return good ? std::string() : fmt::format("{} must be a whole number from {} to {}", word, least, INT64_MAX);
      },
      "");
}

// A path that is there at all: an empty variable of a script must not mean the defaults.
CLI::Validator named(const std::string& example) {
  return CLI::Validator(
      [=](std::string& word) { return word.empty() ? "is empty; name one, such as " + example : std::string(); }, "");
}

void define_run_file(CLI::App& app, RunFileArguments& arguments) {
  app.add_option("RUN_FILE", arguments.run_file, "the run file (TOML)")
      ->required()
      ->type_name("")
      ->check(named("examples/jargon.toml"));
  app.add_flag("--print-config", arguments.print_config, "print the effective configuration and where it came from");
}

void define_train(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<TrainArguments>();
  define_run_file(app, arguments);
  app.add_flag("--resume", arguments.resume, "go on from the newest checkpoint of the run folder");
  app.add_flag("--dry-run", arguments.dry_run, "plan and print the banner; train nothing");
}

void define_plan(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<PlanArguments>();
  define_run_file(app, arguments);
  app.add_flag("--json", arguments.json, "print one JSON object");
  app.add_option("--svg", arguments.svg, "draw the schedule into FILE")->type_name("FILE");
  const auto positive = number([](double rate) { return rate > 0; }, "above 0");
  app.add_option("--ranks-per-host", arguments.ranks_per_host, "consecutive ranks on one host; default all")
      ->type_name("N")
      ->check(whole_number(1));
  app.add_option("--inner-gbit", arguments.inner_gbit,
                 "Gbit/s from a rank to others of its host: adds times to the layouts")
      ->type_name("G")
      ->check(positive);
  app.add_option("--outer-gbit", arguments.outer_gbit, "Gbit/s from a host to the others, for all its ranks")
      ->type_name("G")
      ->check(positive);
  app.add_option("--gflops", arguments.gflops,
                 "10^9 operations/s of a rank in attention; default: computing takes no time")
      ->type_name("G")
      ->check(positive);
}

void define_verify(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<VerifyArguments>();
  define_run_file(app, arguments);
  app.add_option("--steps", arguments.steps, "optimizer steps to compare; default 3")
      ->type_name("N")
      ->check(whole_number(1));
  app.add_flag("--json", arguments.json, "print one JSON object");
}

void define_tokenize(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<TokenizeArguments>();
  app.add_option("INPUT", arguments.inputs, "text files and globs")->required()->type_name("");
  app.add_option("--output", arguments.output, "write PREFIX.bin and PREFIX.idx")->required()->type_name("PREFIX");
  app.add_option("--tokenizer", arguments.tokenizer, "byte, FILE.model or train:N; default byte")->type_name("T");
}

void define_generate(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<GenerateArguments>();
  app.add_option("DIRECTORY", arguments.directory, "a run folder, a checkpoint or a Hugging Face directory")
      ->required()
      ->type_name("")
      ->check(named("runs/jargon"));
  app.add_option("--prompt", arguments.prompt, "text to go on from; default: the start of a document")
      ->type_name("TEXT");
  app.add_option("--max-new-tokens", arguments.max_new_tokens, "tokens to make; default 200")
      ->type_name("N")
      ->check(whole_number(1));
  app.add_option("--temperature", arguments.temperature, "0: always the likeliest token; default 0.8")
      ->type_name("T")
      ->check(number([](double t) { return t >= 0; }, "at least 0"));
  app.add_option("--top-p", arguments.top_p, "draw from the likeliest tokens that make up this share; default 0.95")
      ->type_name("P")
      ->check(number([](double p) { return p > 0 && p <= 1; }, "above 0 and at most 1"));
  app.add_option("--seed", arguments.seed, "of the draws; default 1234")->type_name("S")->check(whole_number(0));
}

void define_report(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<ReportArguments>();
  app.add_option("RUN_DIR", arguments.dump_folder, "a run folder (job.dump_folder)")
      ->required()
      ->type_name("")
      ->check(named("runs/jargon"));
}

void define_doctor(CLI::App& app, Command& command) {
  auto& arguments = command.emplace<DoctorArguments>();
  app.add_flag("--json", arguments.json, "print one JSON object");
}

const std::vector<CommandEntry>& commands() {
  static const std::vector<CommandEntry> entries = {
      {"train",
       "RUN_FILE [OPTIONS] [SETTINGS]",
       "train on text, over the ranks of the run file",
       {"orthant train examples/jargon.toml", "orthant train run.toml --training.steps 20 run.ranks=2",
        "torchrun --no-python --nproc-per-node 2 orthant train run.toml --resume"},
       true,
       define_train},
      {"plan",
       "RUN_FILE [OPTIONS] [SETTINGS]",
       "show who will hold and do what: bytes, memory, schedule",
       {"orthant plan run.toml", "orthant plan run.toml --json run.ranks=64",
        "orthant plan run.toml --svg schedule.svg",
        "orthant plan run.toml --ranks-per-host 8 --inner-gbit 800 --outer-gbit 100"},
       true,
       define_plan},
      {"verify",
       "RUN_FILE [OPTIONS] [SETTINGS]",
       "compare the layout with one device, in float64",
       {"orthant verify run.toml", "orthant verify run.toml --steps 5 run.ranks=3"},
       true,
       define_verify},
      {"tokenize",
       "INPUT... --output PREFIX [OPTIONS]",
       "turn text into PREFIX.bin and PREFIX.idx",
       {"orthant tokenize 'books/*.txt' --output books", "orthant tokenize a.txt --output a --tokenizer train:8000"},
       false,
       define_tokenize},
      {"generate",
       "DIRECTORY [OPTIONS]",
       "make text with a trained model",
       {"orthant generate runs/jargon --prompt 'A hacker is'", "orthant generate runs/jargon --temperature 0"},
       false,
       define_generate},
      {"report",
       "RUN_DIR",
       "write RUN_DIR/report.html: loss, throughput, memory",
       {"orthant report runs/jargon"},
       false,
       define_report},
      {"doctor", "[--json]", "tell what this machine has and lacks", {"orthant doctor"}, false, define_doctor},
  };
  return entries;
}

std::string overview() {
  std::string text = "Orthant trains transformers over many devices.\n\nusage: orthant COMMAND ...\n\n";
  for (const CommandEntry& entry : commands()) text += fmt::format("  {:<10}{}\n", entry.name, entry.summary);
  return text +
         "\nexample: orthant train examples/jargon.toml\n"
         "help:    orthant COMMAND --help, or orthant --help-all\n";
}

std::string options_text(const CLI::App& app) {
  std::string text;
  const auto line = [&](const std::string& name, const std::string& help) {
    text += fmt::format("  {:<22}{}\n", name, help);
  };
  for (const CLI::Option* option : app.get_options()) {
    const std::string value = option->get_type_size() > 0 ? " " + option->get_type_name() : "";
    line(option->get_positional() ? option->get_name() : option->get_name() + value, option->get_description());
  }
  line("-h, --help", "print this text");
  return text;
}

std::unique_ptr<CLI::App> define(const CommandEntry& entry, Command& command) {
  auto app = std::make_unique<CLI::App>();
  app->set_help_flag();
  app->allow_extras();
  entry.define(*app, command);
  return app;
}

std::string help(const CommandEntry& entry) {
  Command command;
  std::string text = fmt::format("orthant {}: {}\n\nusage: orthant {} {}\n\nexamples:\n", entry.name, entry.summary,
                                 entry.name, entry.usage);
  for (const std::string& example : entry.examples) text += "  " + example + "\n";
  text += "\noptions:\n" + options_text(*define(entry, command));
  if (entry.takes_run_file) {
    text += "\nsettings: any key of the run file, as --section.key VALUE or section.key=VALUE; they beat the file.\n" +
            config_help();
  }
  return text;
}

std::string help_all() {
  std::string text = overview();
  for (const CommandEntry& entry : commands()) {
    Command command;
    text += fmt::format("\northant {} {}\n{}", entry.name, entry.usage, options_text(*define(entry, command)));
  }
  return text + "\nSettings of train, plan and verify, as --section.key VALUE or section.key=VALUE:\n" + config_help();
}

[[noreturn]] void refuse(const CommandEntry& entry, const std::string& problem) {
  throw UsageError(
      fmt::format("{}\nusage: orthant {} {}\nhelp:  orthant {} --help", problem, entry.name, entry.usage, entry.name));
}

void refuse_extra(const CommandEntry& entry, const CLI::App& app, const std::string& extra) {
  if (!extra.starts_with("-")) refuse(entry, "unexpected argument " + extra);
  Words names = {"--help"};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) names.push_back(option->get_name());
  }
  const auto near = nearest(extra.substr(0, extra.find('=')), names);
  refuse(entry, "unknown option " + extra + (near ? "; did you mean " + *near + "?" : ""));
}

void parse(const CommandEntry& entry, CLI::App& app, Words arguments) {
  // CLI11 takes a vector from its end.
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    // Something unknown explains a missing argument better than the missing argument does.
    for (const std::string& extra : app.remaining()) {
      if (extra.starts_with("-")) refuse_extra(entry, app, extra);
    }
    refuse(entry, error.what());
  }
  const Words extras = app.remaining();
  if (!extras.empty()) refuse_extra(entry, app, extras.front());
}

RunFileArguments* run_file_arguments(Command& command) {
  if (auto* arguments = std::get_if<TrainArguments>(&command)) return arguments;
  if (auto* arguments = std::get_if<PlanArguments>(&command)) return arguments;
  return std::get_if<VerifyArguments>(&command);
}

Command parse_command(const CommandEntry& entry, Words arguments) {
  const auto is_help = [](const std::string& word) { return word == "-h" || word == "--help"; };
  if (std::ranges::any_of(arguments, is_help)) return PrintText{help(entry)};
  Command command;
  const auto app = define(entry, command);
  Words overrides;
  if (entry.takes_run_file) {
    overrides = take_overrides(arguments);
    try {
      parse_config("", "", overrides);
    } catch (const ConfigError& error) {
      refuse(entry, error.what());
    }
  }
  parse(entry, *app, std::move(arguments));
  if (RunFileArguments* run = run_file_arguments(command)) run->overrides = std::move(overrides);
  return command;
}

}  // namespace

std::string version() { return ORTHANT_VERSION; }

Command parse_command_line(const Words& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") return PrintText{overview()};
  const std::string& first = arguments[0];
  if (first == "--help-all") return PrintText{help_all()};
  if (first == "--version") return PrintText{fmt::format("orthant {}\n", version())};
  if (first == "reference") return PrintText{config_reference()};
  Words names;
  for (const CommandEntry& entry : commands()) {
    if (entry.name == first) return parse_command(entry, Words(arguments.begin() + 1, arguments.end()));
    names.push_back(entry.name);
  }
  const auto near = nearest(first, names);
  throw UsageError(fmt::format("unknown command {}; {}\nhelp:  orthant --help", first,
                               near ? "did you mean " + *near + "?" : "the commands are " + join(names, ", ")));
}

}  // namespace orthant

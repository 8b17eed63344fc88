#include "app/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "app/command_table.h"
#include "base/text.h"
#include "plan/config.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

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

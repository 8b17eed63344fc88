#include "app/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "app/command_table.h"
#include "app/manual_page.h"
#include "app/option_list.h"
#include "base/text.h"
#include "config/config.h"

namespace orthant {
namespace {

using Words = std::vector<std::string>;

std::string overview() {
  std::string text = "Orthant trains transformers across many devices.\n\nusage: orthant COMMAND ...\n\n";
  for (const CommandEntry& entry : commands()) text += fmt::format("  {:<11} {}\n", entry.name, entry.summary);
  return text +
         "\nexample: orthant train examples/jargon.toml\n"
         "help:    orthant COMMAND --help, orthant --help-all, or orthant manual | man -l -\n";
}

std::string options_text(const CommandEntry& entry) {
  std::string text;
  for (const ListedOption& option : list_options(entry)) {
    text += fmt::format("  {:<21} {}\n", option.name + (option.value.empty() ? "" : " " + option.value), option.help);
  }
  return text;
}

std::string help(const CommandEntry& entry, bool all_keys) {
  std::string text = fmt::format("orthant {}: {}\n\nusage: orthant {} {}\n\nexamples:\n", entry.name, entry.summary,
                                 entry.name, entry.usage);
  for (const std::string& example : entry.examples) text += "  " + example + "\n";
  text += "\noptions:\n" + options_text(entry);
  if (!entry.takes_run_file) return text;
  text += "\nsettings: keys of the run file, as --section.key VALUE or section.key=VALUE\n";
  return text + (all_keys ? config_help() : config_short_help());
}

std::string help_all() {
  std::string text = overview();
  for (const CommandEntry& entry : commands()) {
    text += fmt::format("\northant {} {}\n{}", entry.name, entry.usage, options_text(entry));
  }
  return text + "\nSettings of train, plan and verify, as --section.key VALUE or section.key=VALUE:\n" + config_help();
}

[[noreturn]] void refuse(const CommandEntry& entry, const std::string& problem) {
  throw UsageError(
      fmt::format("{}\nusage: orthant {} {}\nhelp:  orthant {} --help", problem, entry.name, entry.usage, entry.name));
}

// The name in a word of the command line, without leading dashes and value: "hidden-size" of "--hidden-size=64".
std::string key_name(std::string_view word) {
  word = word.substr(0, word.find('='));
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return std::string(word);
}

// Offers full keys, with the "--" that the user wrote, if any.
std::string offer(const Words& keys, const std::string& extra) {
  Words offered;
  for (const std::string& key : keys) offered.push_back((extra.starts_with("-") ? "--" : "") + key);
  return "; did you mean " + join_or(offered) + "?";
}

// The keys whose last component is nearest to `name`, which no key has.
Words keys_like(const std::string& name) {
  Words names;
  for (const std::string& key : config_keys()) names.push_back(key.substr(key.find('.') + 1));
  const auto near = nearest(name, names);
  return near ? keys_named(*near) : Words{};
}

// Explains an unquoted glob. A shell expands it to the names that match: the first becomes the value of data.path, and
// the others become unexpected arguments. Empty if the arguments do not look like that.
std::string glob_hint(const Words& overrides, const Words& others) {
  namespace fs = std::filesystem;
  for (size_t i = 0; i + 1 < overrides.size(); ++i) {
    if (overrides[i] != "--data.path" && overrides[i] != "--data.validation") continue;
    const fs::path value = overrides[i + 1];
    const auto is_match = [&](const fs::path& other) {
      return other.extension() == value.extension() && other.parent_path() == value.parent_path();
    };
    if (std::ranges::none_of(others, is_match)) continue;
    const std::string pattern = value.parent_path() / ("*" + value.extension().string());
    return fmt::format("; the shell expanded a glob to several names: put it in quotes, {} '{}'", overrides[i],
                       pattern);
  }
  return "";
}

[[noreturn]] void refuse_extra(const CommandEntry& entry, const CLI::App& app, const std::string& extra) {
  const bool takes_keys = entry.takes_run_file && (extra.starts_with("-") || extra.find('=') != std::string::npos);
  const Words named = takes_keys ? keys_named(key_name(extra)) : Words{};
  const std::string what = (extra.starts_with("-") ? "unknown option " : "unexpected argument ") + extra;
  if (!named.empty()) refuse(entry, what + offer(named, extra));
  if (!extra.starts_with("-")) refuse(entry, what);
  Words names = {"--help"};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) names.push_back(option->get_name());
  }
  const auto near = nearest(extra.substr(0, extra.find('=')), names);
  if (near) refuse(entry, what + "; did you mean " + *near + "?");
  const Words like = takes_keys ? keys_like(key_name(extra)) : Words{};
  refuse(entry, what + (like.empty() ? "" : offer(like, extra)));
}

void parse(const CommandEntry& entry, CLI::App& app, Words arguments, const Words& overrides) {
  Words names = arguments;
  std::erase_if(names, [](const std::string& word) { return word.starts_with("-"); });
  // CLI11 reads the vector from its end.
  std::reverse(arguments.begin(), arguments.end());
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    // An unknown option explains the failure better than the argument that is missing because of it.
    for (const std::string& extra : app.remaining()) {
      if (extra.starts_with("-")) refuse_extra(entry, app, extra);
    }
    refuse(entry, error.what());
  }
  const Words extras = app.remaining();
  if (extras.empty()) return;
  const auto option = std::ranges::find_if(extras, [](const std::string& extra) { return extra.starts_with("-"); });
  if (option != extras.end()) refuse_extra(entry, app, *option);
  if (const std::string hint = glob_hint(overrides, names); !hint.empty()) {
    refuse(entry, "unexpected argument " + extras.front() + hint);
  }
  refuse_extra(entry, app, extras.front());
}

RunFileArguments* run_file_arguments(Command& command) {
  if (auto* arguments = std::get_if<TrainArguments>(&command)) return arguments;
  if (auto* arguments = std::get_if<PlanArguments>(&command)) return arguments;
  return std::get_if<VerifyArguments>(&command);
}

Command parse_command(const CommandEntry& entry, Words arguments) {
  const auto is_help = [](const std::string& word) { return word == "-h" || word == "--help"; };
  if (std::ranges::any_of(arguments, is_help)) return PrintText{help(entry, false)};
  if (std::ranges::find(arguments, "--help-all") != arguments.end()) return PrintText{help(entry, true)};
  Command command;
  const auto app = define_options(entry, command);
  Words overrides;
  if (entry.takes_run_file) {
    overrides = take_overrides(arguments);
    try {
      parse_config("", "", overrides);
    } catch (const ConfigError& error) {
      refuse(entry, error.what());
    }
  }
  parse(entry, *app, std::move(arguments), overrides);
  // Options such as --ranks have set keys already; the words of the keys themselves beat them.
  if (RunFileArguments* run = run_file_arguments(command)) {
    run->overrides.insert(run->overrides.end(), overrides.begin(), overrides.end());
  }
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
  if (first == "manual") return PrintText{manual_page()};
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

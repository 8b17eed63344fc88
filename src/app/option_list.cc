#include "app/option_list.h"

#include <CLI/CLI.hpp>

#include "config/table.h"
#include "hardware/hardware.h"

namespace orthant {
namespace {

ValueChoices choices_of(const CommandEntry& entry, const CLI::Option& option) {
  ValueChoices choices;
  const std::string name = option.get_name(), type = option.get_type_name();
  for (const OptionChoices& fixed : entry.choices) {
    if (fixed.option != name) continue;
    choices = {.words = fixed.words, .files = fixed.or_file, .is_list = option.get_delimiter() != '\0'};
    return choices;
  }
  choices.folders = option.get_positional() && name.find("DIR") != std::string::npos;
  choices.files = type == "FILE" || type == "PATH" || type == "PREFIX" || (option.get_positional() && !choices.folders);
  return choices;
}

ValueChoices choices_of(const Key& key) {
  const std::string type = type_name(key);
  ValueChoices choices{.words = key.legal.choices, .files = key.legal.is_path, .is_list = type.starts_with("list")};
  if (type == "bool") choices.words = {"true", "false"};
  if (key.full_name() == "run.hardware") choices.words = shipped_hardware();
  return choices;
}

}  // namespace

std::vector<ListedOption> list_options(const CommandEntry& entry) {
  Command command;
  const auto app = define_options(entry, command);
  std::vector<ListedOption> options;
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_group().empty()) continue;  // a hidden one
    options.push_back({.name = option->get_name(),
                       .value = option->get_type_size() > 0 ? option->get_type_name() : "",
                       .help = option->get_description()});
    if (option->get_type_size() > 0) options.back().choices = choices_of(entry, *option);
  }
  options.push_back(
      {"-h, --help", "", entry.takes_run_file ? "print the options and the most used keys" : "print this text", {}});
  if (entry.takes_run_file) options.push_back({"--help-all", "", "print the options and all keys of the run file", {}});
  return options;
}

std::vector<ListedOption> list_keys() {
  std::vector<ListedOption> options;
  for (const Key& key : config_table()) {
    options.push_back({"--" + key.full_name(), type_name(key), std::string(key.help), choices_of(key)});
  }
  return options;
}

}  // namespace orthant

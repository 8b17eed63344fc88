// The table of commands: names, help and options. All limits of option values are stated here only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/command_line.h"

namespace CLI {
class App;
}

namespace orthant {

/// The fixed values of an option or argument. Other values are refused, except if it also accepts files.
struct OptionChoices {
  std::string option;
  std::vector<std::string> words;
  bool or_file = false;
};

/// One command: its name, its help, and a function that adds the options that fill its struct.
struct CommandEntry {
  std::string name, usage, summary;
  std::vector<std::string> examples;
  bool takes_run_file = false;
  std::function<void(CLI::App&, Command&)> define;
  std::vector<OptionChoices> choices = {};
};

const std::vector<CommandEntry>& commands();

/// Returns a parser of the command's options, which fill `command`. Unknown words remain. The parser refers to
/// `command`.
std::unique_ptr<CLI::App> define_options(const CommandEntry& entry, Command& command);

}  // namespace orthant

// The table of commands: names, help and options. All limits of option values are stated here only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/command_line.h"

namespace CLI {
class App;
}

namespace orthant {

/// One command: its name, its help, and a function that adds the options that fill its struct.
struct CommandEntry {
  std::string name, usage, summary;
  std::vector<std::string> examples;
  bool takes_run_file = false;
  std::function<void(CLI::App&, Command&)> define;
};

const std::vector<CommandEntry>& commands();

}  // namespace orthant

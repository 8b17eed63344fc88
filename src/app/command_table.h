// The commands as a table: their names, help and options. What the options' words may be is told here and nowhere else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/command_line.h"

namespace CLI {
class App;
}

namespace orthant {

/// What a command is called, what its help shows, and which options fill its struct.
struct CommandEntry {
  std::string name, usage, summary;
  std::vector<std::string> examples;
  bool takes_run_file = false;
  std::function<void(CLI::App&, Command&)> define;
};

const std::vector<CommandEntry>& commands();

}  // namespace orthant

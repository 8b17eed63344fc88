// The options of the commands and the keys of the run file in one form, for help, completions and the manual page.
#pragma once

#include <string>
#include <vector>

#include "app/command_table.h"

namespace orthant {

/// The values of an option that a shell completes.
struct ValueChoices {
  std::vector<std::string> words;
  bool files = false, folders = false;
  bool is_list = false;  // several words, joined by commas

  bool empty() const { return words.empty() && !files && !folders; }
};

struct ListedOption {
  std::string name;   // "--steps"; "RUN_FILE" for an argument without a name; "-h, --help"
  std::string value;  // name of the value in help texts, such as "N"; empty for a flag and for an argument
  std::string help;
  ValueChoices choices;

  bool is_argument() const { return !name.starts_with("-"); }
};

/// Returns the options and arguments of a command that its help shows, in the same order.
std::vector<ListedOption> list_options(const CommandEntry& entry);

/// Returns all keys of the run file as options: "--training.steps". `help` is the key's help, without its default.
std::vector<ListedOption> list_keys();

}  // namespace orthant

// Scripts with which a shell completes the commands, their options, the keys of the run file and their fixed values.
#pragma once

#include <string>

namespace orthant {

/// Returns the script for "bash", "zsh" or "fish". Throws LogicError for another shell.
std::string completion_script(const std::string& shell);

}  // namespace orthant

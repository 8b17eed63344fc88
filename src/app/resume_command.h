// The command with which a user goes on with a run: the one that started it, its launcher included, with --resume.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/launch.h"

namespace orthant {

/// One command line for a shell, words quoted where they need it.
std::string shell_quoted(const std::vector<std::string>& words);

/// `command`: the command line of this process, program first. `launch`: the launcher that started it, if any.
/// `ancestors`: the command lines of the processes above this one, nearest first; on the machine of torchrun or mpirun,
/// its line is among them. srun is no ancestor of its tasks, so its line is made from the numbers of nodes and tasks.
/// Returns the command and, in a second line in brackets, what the user has to add where the command is not complete.
std::string resume_command(const std::vector<std::string>& command, const std::optional<Launch>& launch,
                           const std::vector<std::vector<std::string>>& ancestors, const Environment& environment);

}  // namespace orthant

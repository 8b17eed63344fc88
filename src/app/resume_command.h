// Builds the command that resumes a run: the command that started it, including its launcher, with --resume.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/launch.h"

namespace orthant {

/// Joins words to one command line for a shell, with quotes where needed.
std::string shell_quoted(const std::vector<std::string>& words);

/// `command`: command line of this process, program first. `launch`: the launcher that started it, if detected.
/// `ancestors`: command lines of the parent processes, nearest first; on the machine of torchrun or mpirun they contain
/// its line. srun is no ancestor of its tasks, so its line is built from the numbers of nodes and tasks. Returns the
/// command. If it is incomplete, a second line in parentheses states what the user must add.
std::string resume_command(const std::vector<std::string>& command, const std::optional<Launch>& launch,
                           const std::vector<std::vector<std::string>>& ancestors, const Environment& environment);

}  // namespace orthant

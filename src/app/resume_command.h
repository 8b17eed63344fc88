// The command that resumes a run: the command that started it, with its launcher and with --resume.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/launch.h"

namespace orthant {

/// Returns the command that resumes the run. If the user must complete it, a second line in parentheses says how.
/// `command`: the command line of this process, program first. `launch`: the variables of the launcher, if there is
/// one. `ancestors`: the command lines of the processes above this one, nearest first. They include that of
/// torchrun or mpirun on the machine where it was started. srun is no ancestor of its tasks, so its command line is
/// built from the numbers of nodes and tasks.
std::string resume_command(const std::vector<std::string>& command, const std::optional<Launch>& launch,
                           const std::vector<std::vector<std::string>>& ancestors, const Environment& environment);

}  // namespace orthant

// orthant train --restarts N: whether and how the ranks start again after a failure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/commands.h"
#include "config/config.h"
#include "launch/launch.h"
#include "launch/spawn.h"

namespace orthant {

/// Throws ConfigError if another launcher started this rank: it says how that launcher starts ranks again.
void require_own_launcher(const Launch& launch);

/// Returns the function for SpawnOptions::restart; null with --restarts 0. Call it before the ranks start: a checkpoint
/// that exists then is continued only with --resume. At most N times, the function prints a message and returns the
/// command line of the ranks. They resume from the newest checkpoint of this run, or begin with step 1. They do not
/// start again after a usage error, or after two starts in a row that ended before their first step. The arguments must
/// outlive the function.
std::function<std::vector<std::string>(const RankFailure&)> restarts_of(const TrainArguments& arguments,
                                                                        const Config& config);

}  // namespace orthant

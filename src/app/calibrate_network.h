// Measures the links between hosts for a hardware file.
#pragma once

#include "app/commands.h"
#include "launch/launch.h"

namespace orthant {

/// Carries out orthant calibrate as one rank of a launcher: measures collectives between hosts and, on rank 0, writes
/// the profile of arguments.hardware with these links. Throws ConfigError if there are fewer than two hosts, if they
/// have different numbers of ranks, or if the profile is missing or describes GPUs.
int calibrate_network(const CalibrateArguments& arguments, const Launch& launch);

}  // namespace orthant

// Measures the links between hosts for a hardware profile, and writes profiles.
#pragma once

#include <string>

#include "app/commands.h"
#include "hardware/hardware.h"
#include "launch/launch.h"

namespace orthant {

/// The part of the time for messages between ranks that collectives get; messages to one rank get the rest.
inline constexpr double kCollectivesShare = 0.8;

/// Carries out orthant calibrate as one rank of a launcher: measures collectives between hosts and, on rank 0, writes
/// the profile of arguments.hardware with these links. Throws ConfigError if there are fewer than two hosts, if they
/// have different numbers of ranks, or if the profile is missing or describes GPUs.
int calibrate_network(const CalibrateArguments& arguments, const Launch& launch);

/// Writes the profile to the file and tells where it is, or prints it if `file` is empty.
void write_profile(const Hardware& hardware, const std::string& file);

/// Who measures, and when, for the origins of a profile.
std::string host_name();
std::string today();  // 2026-11-29

}  // namespace orthant

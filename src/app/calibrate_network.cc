#include "app/calibrate_network.h"

#include <fmt/format.h>

#include <cstdio>
#include <ios>

#include "app/hardware_file.h"
#include "app/streams.h"
#include "base/errors.h"
#include "base/host_name.h"
#include "base/text.h"
#include "calibrate/measure_links.h"
#include "launch/rendezvous.h"
#include "runtime/memory.h"

namespace orthant {
namespace {

constexpr const char* kRanksOfHost = "ranks_of_host";

void require_hardware(const std::string& name_or_file) {
  if (name_or_file.empty()) {
    throw ConfigError(
        "under a launcher, orthant calibrate measures the links between hosts: --hardware must name the profile of one "
        "host, which orthant calibrate --write machine.toml makes there without a launcher");
  }
}

Hardware profile_of_host(const std::string& name_or_file) {
  Hardware hardware = load_hardware(name_or_file);
  if (!hardware.device.communication_uses_compute) {
    throw ConfigError(
        fmt::format("--hardware {} describes GPUs, whose links orthant calibrate cannot measure: set the "
                    "table [between_hosts] by hand",
                    name_or_file));
  }
  return hardware;
}

// The number of hosts, which have equally many ranks.
int count_hosts(const Launch& launch) {
  if (launch.world_size % launch.local_size != 0 || launch.rank % launch.local_size != launch.local_rank) {
    throw ConfigError(
        fmt::format("orthant calibrate needs the same number of ranks on every host, in order: rank {} of {} is "
                    "number {} of the {} on its host",
                    launch.rank, launch.world_size, launch.local_rank, launch.local_size));
  }
  const int hosts = launch.world_size / launch.local_size;
  if (hosts == 1) {
    throw ConfigError(
        fmt::format("under a launcher, orthant calibrate measures the links between hosts, and all {} ranks "
                    "are on one: start them on several, or run it without a launcher",
                    launch.world_size));
  }
  return hosts;
}

// The ranks of a host, and an axis over hosts for each prime factor of their number.
Mesh mesh_of(int ranks_of_host, int hosts) {
  std::vector<Axis> axes = {{kRanksOfHost, ranks_of_host}};
  for (int factor = 2; hosts > 1;) {
    if (hosts % factor != 0) {
      ++factor;
    } else {
      axes.push_back({fmt::format("hosts_{}", axes.size()), factor});
      hosts /= factor;
    }
  }
  return Mesh(axes);
}

}  // namespace

int calibrate_network(const CalibrateArguments& arguments, const Launch& launch) {
  require_hardware(arguments.hardware);
  Hardware hardware;
  if (launch.rank == 0) hardware = profile_of_host(arguments.hardware);
  const int hosts = count_hosts(launch);
  if (launch.rank == 0 && !arguments.write.empty()) write_file("--write", arguments.write, "", std::ios::app);
  install_counting_allocator();
  const Rendezvous rendezvous = connect(launch);
  check_agreement(rendezvous,
                  fmt::format("ranks on each host = {}\nseconds = {}\n", launch.local_size, arguments.seconds));
  Comm comm(mesh_of(launch.local_size, hosts), launch.rank, rendezvous, {});
  std::vector<MeasuredCollective> measured;
  const auto append = [&](const std::vector<MeasuredCollective>& found) {
    measured.insert(measured.end(), found.begin(), found.end());
  };
  const double seconds = kCollectivesShare * arguments.seconds;
  Axes axes;
  const double groups = static_cast<double>(comm.mesh().axes.size() - 1);
  for (const Axis& axis : comm.mesh().axes) {
    if (axis.name == kRanksOfHost) continue;
    axes.push_back(axis.name);
    if (launch.rank == 0) {
      fmt::print(stderr, "measuring messages between {} of {} hosts with {} each\n", comm.mesh().group_size(axes),
                 hosts, counted(launch.local_size, "rank"));
    }
    if (axes.size() == 1) append(measure_messages(comm, axes, arguments.seconds - seconds, {}));
    append(measure_collectives(comm, axes, seconds / groups, {}));
  }
  if (launch.rank != 0) return kDone;
  const std::string origin = fmt::format("measured: {} hosts with {} each, orthant calibrate on {}, {}", hosts,
                                         counted(launch.local_size, "rank"), host_name(), today());
  hardware.device.per_host = launch.local_size;
  hardware.between_hosts = fit_network(measured, origin);
  write_profile(hardware, arguments.write);
  return kDone;
}

}  // namespace orthant

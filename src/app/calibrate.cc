// orthant calibrate: measures this machine and writes its hardware file.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/calibrate_network.h"
#include "app/calibrate_step.h"
#include "app/command_line.h"
#include "app/commands.h"
#include "app/hardware_file.h"
#include "app/machine_speed.h"
#include "app/scratch_folder.h"
#include "app/streams.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/errors.h"
#include "base/host_name.h"
#include "base/json.h"
#include "calibrate/measure_kernels.h"
#include "calibrate/measure_links.h"
#include "launch/process.h"
#include "launch/rendezvous.h"
#include "launch/spawn.h"
#include "runtime/machine_memory.h"
#include "runtime/memory.h"

namespace orthant {
namespace {

constexpr double kKernelShare = 0.45, kGroupShare = 0.1;  // of the time of the measurements
const std::vector<int> kGroups = {2, 4, 8};

// The resident set of this process, in bytes.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

// Carries out the part of one rank: measures with the others, and rank 0 writes the results to the file.
int measure_links(const std::string& path, double seconds) {
  const auto launch = detect_launch(process_environment, parent_identity());
  if (!launch) throw ConfigError("--links is for the ranks that orthant calibrate starts");
  install_counting_allocator();
  const double before = resident_bytes();
  Comm comm(Mesh({{"ring", launch->world_size}}), launch->rank, connect(*launch), {});
  const Axes axes = all_axes(comm.mesh());
  const std::function<void()> compute = make_computation();
  std::vector<MeasuredCollective> found = measure_collectives(comm, axes, kCollectivesShare * seconds, compute);
  if (launch->world_size == 2) {
    const auto messages = measure_messages(comm, axes, (1 - kCollectivesShare) * seconds, compute);
    found.insert(found.end(), messages.begin(), messages.end());
  }
  if (launch->rank != 0) return kDone;
  nlohmann::ordered_json out = {{"process_bytes", before}, {"group_bytes", std::max(0.0, resident_bytes() - before)}};
  for (const MeasuredCollective& c : found) {
    out["collectives"].push_back({name_of(c.kind), c.ranks, c.bytes_sent, c.seconds});
  }
  write_file("--links", path, out.dump());
  return kDone;
}

// Starts the ranks of a group and appends their measurements.
void measure_group(Measurements& measured, int ranks, double seconds) {
  const ScratchFolder folder(std::filesystem::temp_directory_path() / ".orthant-calibrate");
  const std::string file = folder.path() + "/links.json";
  const int code = run_local_ranks({"orthant", "calibrate", "--links", file, "--seconds", fmt::format("{}", seconds)},
                                   ranks, {.program = "/proc/self/exe", .threads_per_rank = 1});
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  if (code != kDone) throw CommError(fmt::format("the {} ranks that measure messages have failed", ranks));
  const nlohmann::ordered_json found = parse_json(text.str(), "the measured messages");
  measured.process_bytes = found.at("process_bytes");
  measured.group_bytes = found.at("group_bytes");
  for (const auto& row : found.at("collectives")) {
    measured.collectives.push_back({collective_named(row.at(0).get<std::string>()), row.at(1), row.at(2), row.at(3)});
  }
}

}  // namespace

int calibrate(const CalibrateArguments& arguments) {
  die_with_parent();
  if (!arguments.links.empty()) return measure_links(arguments.links, arguments.seconds);
  if (const auto launch = detect_launch(process_environment, parent_identity())) {
    return calibrate_network(arguments, *launch);
  }
  if (!arguments.hardware.empty()) {
    throw UsageError(
        "--hardware is for orthant calibrate under a launcher on several hosts, which measures the links between them\n"
        "help:  orthant calibrate --help");
  }
  if (!arguments.write.empty()) write_file("--write", arguments.write, "", std::ios::app);  // an error comes first
  install_counting_allocator();
  const auto begin = Clock::now();
  const std::string advice = neighbors_advice(measure_machine_speed(1));
  if (!advice.empty()) fmt::print(stderr, "warning: {}\n", advice);
  Measurements measured{.host = host_name(),
                        .date = today(),
                        .cores = available_cores(),
                        .memory_bytes = static_cast<double>(machine_memory().total_bytes)};
  std::string last;
  const auto report = [&](double, const std::string& what) {
    if (what != last) fmt::print(stderr, "{:4.0f} s  measuring {}\n", seconds_since(begin), what);
    last = what;
  };
  measure_kernels(measured, kKernelShare * arguments.seconds, report);
  for (const int ranks : kGroups) {
    report(1, fmt::format("messages between {} ranks", ranks));
    measure_group(measured, ranks, kGroupShare * arguments.seconds);
  }
  Hardware hardware = fit_hardware(measured);
  report(1, "training steps");
  fit_step(hardware);
  const FitErrors errors = fit_errors(hardware, measured);
  fmt::print(
      stderr,
      "{:4.0f} s  the profile explains the measured times with mean errors of {:.0f} % for products, {:.0f} % for "
      "attention, {:.0f} % for memory-bound kernels and {:.0f} % for messages\n",
      seconds_since(begin), 100 * errors.products, 100 * errors.attention, 100 * errors.kernels,
      100 * errors.collectives);
  constexpr double kUsable = 0.5;
  if (std::max({errors.products, errors.attention, errors.kernels, errors.collectives}) > kUsable) {
    fmt::print(
        stderr,
        "warning: a mean error above {:.0f} % probably means that other programs have disturbed the "
        "measurement; plans with this profile are wrong. Run orthant calibrate again when the machine is quiet\n",
        100 * kUsable);
  }
  write_profile(hardware, arguments.write);
  return kDone;
}

}  // namespace orthant

// Helpers of the benchmark programs that run on several ranks: command-line options, starting of ranks as processes,
// and statistics of measured times.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/text.h"
#include "comm/comm.h"
#include "launch/launch.h"
#include "launch/process.h"
#include "launch/spawn.h"

namespace orthant {

/// Options "--name value ..." of the command line, with defaults. A name without a default throws a ConfigError.
class Settings {
 public:
  Settings(int argc, char** argv, std::map<std::string, std::string> defaults) : values_(std::move(defaults)) {
    for (int i = 1; i < argc; i += 2) {
      const auto found = values_.find(std::string(argv[i]).substr(0, 2) == "--" ? argv[i] + 2 : argv[i]);
      if (found == values_.end() || i + 1 == argc) {
        std::string usage;
        for (const auto& [name, value] : values_) usage += fmt::format(" [--{} {}]", name, value);
        throw ConfigError(fmt::format("{}: unknown, or without a value; usage: {}{}", argv[i], argv[0], usage));
      }
      found->second = argv[i + 1];
    }
  }

  const std::string& text(const std::string& name) const { return values_.at(name); }
  double number(const std::string& name) const { return std::stod(text(name)); }
  std::vector<int64_t> integers(const std::string& name) const {
    std::vector<int64_t> found;
    for (const auto& part : split(text(name), ',')) found.push_back(std::stoll(part));
    return found;
  }

 private:
  std::map<std::string, std::string> values_;
};

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns the quantile of the values at `share` (0.5: the median). It sorts the values.
inline double quantile(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

/// Returns rank 0's number on all ranks.
inline int64_t agree(Comm& comm, int64_t number) {
  const at::Tensor said = at::tensor({number}, at::kLong);
  comm.broadcast(said, all_axes(comm.mesh())).wait();
  return said.item<int64_t>();
}

/// Returns the numbers of all ranks, by rank.
inline std::vector<double> gather(Comm& comm, double number) {
  const at::Tensor own = at::tensor({number}, at::kDouble);
  const at::Tensor all = own.repeat({comm.mesh().size()});
  comm.all_gather(all, own, all_axes(comm.mesh())).wait();
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

/// Returns the time in seconds that one step takes on the slowest rank, measured from a barrier.
inline double time_step(Comm& comm, const std::function<void()>& step) {
  comm.barrier(all_axes(comm.mesh())).wait();
  const double start = now_s();
  step();
  const auto all = gather(comm, now_s() - start);
  return *std::max_element(all.begin(), all.end());
}

inline Mesh one_ring(const Launch& launch) { return Mesh({{"ring", launch.world_size}}); }

/// Starts this program again as `ranks` processes of one thread. Each of them calls `measure` with a Comm of `mesh`.
/// Under another launcher, that launcher's ranks call it. Returns the exit code.
inline int measure_on_ranks(int argc, char** argv, int ranks, const std::string& transport,
                            const std::function<void(Comm&)>& measure,
                            const std::function<Mesh(const Launch&)>& mesh = one_ring) {
  die_with_parent();
  const auto launch = detect_launch(process_environment, parent_identity());
  if (!launch) {
    return run_local_ranks({argv, argv + argc}, ranks, {.program = "/proc/self/exe", .threads_per_rank = 1});
  }
  const Rendezvous rendezvous = connect(*launch);
  Comm comm(mesh(*launch), launch->rank, rendezvous, {.transport = transport});
  measure(comm);
  return 0;
}

/// The main function of a benchmark: returns the exit code of `run`. If it throws, prints the error and returns 1.
inline int run_benchmark(int argc, char** argv, int (*run)(int argc, char** argv)) try {
  return run(argc, argv);
} catch (const std::exception& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  return 1;
}

}  // namespace orthant

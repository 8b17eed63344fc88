#include "app/machine_speed.h"

#include "base/clock.h"
#include "base/text.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fmt/format.h>
#include <fstream>
#include <iterator>
#include <sstream>

namespace orthant {
namespace {

std::vector<int> cores_of_process() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::string proc_stat() {
  std::ifstream file("/proc/stat");
  return {std::istreambuf_iterator<char>(file), {}};
}

double process_cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Measured {
  double gflops = 0, wall_s = 0, cpu_s = 0;
};

Measured multiply(int threads, double seconds) {
  constexpr int64_t n = 1024;
  const at::NoGradGuard no_grad;
  at::set_num_threads(threads);
  const at::Tensor a = at::ones({n, n}), b = at::ones({n, n});
  at::Tensor c = at::mm(a, b);  // untimed first call: the library may initialize itself
  const auto start = Clock::now();
  const double cpu_start_s = process_cpu_s();
  int64_t products = 0;
  do {
    at::mm_out(c, a, b);
    ++products;
  } while (seconds_since(start) < seconds);
  const double wall_s = seconds_since(start);
  return {2e-9 * n * n * n * static_cast<double>(products) / wall_s, wall_s, process_cpu_s() - cpu_start_s};
}

}  // namespace

CoreTicks core_ticks(std::string_view stat, const std::vector<int>& cores) {
  CoreTicks ticks;
  for (const std::string& line : split(stat, '\n')) {
    std::istringstream words(line);
    std::string name;
    int64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
    words >> name >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal;
    if (!name.starts_with("cpu") || name.size() == 3) continue;  // "cpu" without a number is the sum over all cores
    if (std::ranges::find(cores, std::atoi(name.c_str() + 3)) == cores.end()) continue;
    ticks.busy += user + nice + system + irq + softirq;
    ticks.stolen += steal;
  }
  return ticks;
}

MachineSpeed measure_machine_speed(double seconds) {
  const std::vector<int> cores = cores_of_process();
  const int threads_before = at::get_num_threads(), all = static_cast<int>(cores.size());
  const double ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto start = Clock::now();
  const double cpu_start_s = process_cpu_s();
  const CoreTicks before = core_ticks(proc_stat(), cores);
  const Measured one = multiply(1, seconds / 2), many = multiply(all, seconds / 2);
  const CoreTicks after = core_ticks(proc_stat(), cores);
  const double wall_s = seconds_since(start), cpu_s = process_cpu_s() - cpu_start_s;
  at::set_num_threads(threads_before);
  const double busy_s = static_cast<double>(after.busy - before.busy) / ticks_per_s;
  return {.threads = all,
          .one_thread_gflops = one.gflops,
          .all_threads_gflops = many.gflops,
          .cpu_share = std::min(1.0, (one.cpu_s + many.cpu_s) / (one.wall_s + all * many.wall_s)),
          .others_cores = std::max(0.0, busy_s - cpu_s) / wall_s,
          .stolen_cores = static_cast<double>(after.stolen - before.stolen) / ticks_per_s / wall_s};
}

std::string neighbors_advice(const MachineSpeed& speed) {
  constexpr double kMuch = 0.1;
  const double cores = speed.threads;
  std::string who;
  if (speed.stolen_cores > kMuch * cores) {
    who = fmt::format(
        "other virtual machines use {:.1f} of {}: ask for dedicated cores, or expect steps "
        "that are longer than planned",
        speed.stolen_cores, counted(speed.threads, "core"));
  } else if (speed.others_cores > kMuch * cores) {
    who = fmt::format("other programs keep {:.1f} of {} busy: stop them (top lists them), or set run.ranks and "
                      "run.threads_per_rank so that ranks x threads fit the rest",
                      speed.others_cores, counted(speed.threads, "core"));
  } else if (speed.cpu_share < 1 - 2 * kMuch) {
    who = fmt::format("the threads got {:.0f}% of the CPU time that they could have used: other programs, or this "
                      "container's limit (cpu.max), take the rest; stop them, raise the limit, or use fewer threads",
                      100 * speed.cpu_share);
  }
  return who;
}

}  // namespace orthant

// Measures how fast this machine multiplies matrices, and how much core time other programs take meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct MachineSpeed {
  int threads = 1;                // threads of all_threads_gflops: the cores this process may use
  double one_thread_gflops = 0;   // 10^9 float32 operations/s
  double all_threads_gflops = 0;
  double cpu_share = 1;           // CPU time of the threads / the time they could have used, 0..1
  double others_cores = 0;        // mean number of cores that other programs kept busy
  double stolen_cores = 0;        // mean number of cores the hypervisor gave to other machines
};

/// Multiplies matrices for about `seconds` seconds: half of the time with one thread, half with all threads. Restores
/// the number of threads.
MachineSpeed measure_machine_speed(double seconds);

/// Advice in one sentence, with numbers, if other programs take more than a tenth of the core time; else empty.
std::string neighbours_advice(const MachineSpeed& speed);

/// Sums over the given cores of the counters in /proc/stat, in clock ticks since boot.
struct CoreTicks {
  int64_t busy = 0;    // user, nice, system, irq and softirq
  int64_t stolen = 0;  // steal
};
/// Sums the lines of `cores` in the text of /proc/stat.
CoreTicks core_ticks(std::string_view proc_stat, const std::vector<int>& cores);

}  // namespace orthant

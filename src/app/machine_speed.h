// Measures how fast this machine multiplies matrices, and how much CPU time other programs take meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct MachineSpeed {
  int threads = 1;                // threads of all_threads_gflops: one for each core that this process may use
  double one_thread_gflops = 0;   // float32, 10^9 operations/s
  double all_threads_gflops = 0;  // float32, 10^9 operations/s
  double cpu_share = 1;           // CPU time of the threads over their wall time, 0..1
  double others_cores = 0;        // mean number of cores that other programs kept busy
  double stolen_cores = 0;        // mean number of cores that the hypervisor gave to other virtual machines
};

/// Multiplies matrices for about `seconds` seconds: half of the time with one thread, half with all threads. Restores
/// the number of threads.
MachineSpeed measure_machine_speed(double seconds);

/// One sentence with the figures and a remedy if other programs or virtual machines take more than a tenth of the
/// cores, or if the threads got less than 0.8 of their wall time as CPU time; otherwise empty.
std::string neighbors_advice(const MachineSpeed& speed);

/// CPU time of some cores since boot, in clock ticks.
struct CoreTicks {
  int64_t busy = 0;    // user, nice, system, irq and softirq
  int64_t stolen = 0;  // steal
};
/// Sums the lines of `cores` in the text of /proc/stat.
CoreTicks core_ticks(std::string_view proc_stat, const std::vector<int>& cores);

}  // namespace orthant

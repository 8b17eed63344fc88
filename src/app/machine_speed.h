// How fast this machine multiplies matrices, and how much of its cores' time other programs take meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct MachineSpeed {
  int threads = 1;                // of all_threads_gflops: as many as cores that this process may use
  double one_thread_gflops = 0;   // 10^9 float32 operations/s
  double all_threads_gflops = 0;
  double cpu_share = 1;           // CPU time that the threads got over the time that they could have used, 0..1
  double others_cores = 0;        // cores kept busy by other programs, on average
  double stolen_cores = 0;        // cores that the hypervisor gave to other virtual machines, on average
};

/// Multiplies matrices for about `seconds` seconds: half of the time with one thread, half with all. Restores the
/// number of threads.
MachineSpeed measure_machine_speed(double seconds);

/// One sentence with the figures and what to do where other programs take more than a tenth of the cores' time; else
/// empty.
std::string neighbours_advice(const MachineSpeed& speed);

/// Sums over some cores of the text of /proc/stat, in clock ticks since boot.
struct CoreTicks {
  int64_t busy = 0;    // user, nice, system, irq and softirq
  int64_t stolen = 0;  // steal
};
CoreTicks core_ticks(std::string_view proc_stat, const std::vector<int>& cores);

}  // namespace orthant

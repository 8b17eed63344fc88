// Checks whether a plan's memory fits this machine, the control group that limits this process, or a GPU.
#pragma once

#include "plan/plan.h"

#include <cstdint>
#include <string>

namespace orthant {

struct MachineMemory {
  int64_t total_bytes = 0, available_bytes = 0;  // 0: not known
  std::string owner = "this machine";            // or "this control group", or "the GPU"
};

/// Reads /proc/meminfo and the memory limits of all control groups above this process, versions 1 and 2. Memory that
/// the kernel can reclaim, such as cached files, counts as available. `root` is a prefix of all paths, for tests.
MachineMemory machine_memory(const std::string& root = "");

/// Result of comparing a plan's tensors for all local ranks with this machine. The program itself and libtorch need
/// more memory, which is not counted.
struct MemoryNeed {
  std::string warning;              // empty if the plan fits the available memory
  bool exceeds_machine = false;     // the plan exceeds the machine's total memory
};
MemoryNeed memory_need(const Plan& plan, int local_ranks, const MachineMemory& machine);

}  // namespace orthant

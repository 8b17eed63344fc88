// Whether what a plan needs fits the memory of this machine, or of the control group that this process may use of it.
#pragma once

#include "plan/plan.h"

#include <cstdint>
#include <string>

namespace orthant {

struct MachineMemory {
  int64_t total_bytes = 0, available_bytes = 0;  // 0: not known
  std::string owner = "this machine";            // or "this control group"
};

/// From /proc/meminfo and the memory limits of the control groups above this process (both versions); what can be given
/// back, such as cached files, counts as available. `root` stands before all paths: tests have their own.
MachineMemory machine_memory(const std::string& root = "");

/// What to say about a plan whose local ranks are to run there. The program itself, with libtorch, comes on top.
struct MemoryNeed {
  std::string warning;              // empty where the plan fits what is available
  bool beyond_the_machine = false;  // it would not fit if all else ended
};
MemoryNeed memory_need(const Plan& plan, int local_ranks, const MachineMemory& machine);

}  // namespace orthant

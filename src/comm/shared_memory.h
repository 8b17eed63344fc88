// Free space in /dev/shm, through which UCX connects ranks of one machine. Containers often have little of it.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

/// Free bytes in /dev/shm; 0 if it does not exist.
int64_t free_shared_memory();

/// Returns why `ranks` ranks on one machine cannot use UCX with `free_bytes` free, and the way out; empty if they can.
/// The need is linear in the ranks of the machine: 4.2 MiB each.
std::string shared_memory_problem(int64_t free_bytes, int64_t ranks);

}  // namespace orthant

// The memory of /dev/shm, through which ranks of one machine talk: containers often have little.
#pragma once

#include <cstdint>
#include <string>

namespace orthant {

/// Bytes that are free in /dev/shm; 0 where there is none.
int64_t free_shared_memory();

/// Why UCX cannot serve so many ranks of one machine with so many bytes free, with the way out; empty if it can.
std::string shared_memory_problem(int64_t free_bytes, int64_t ranks);

}  // namespace orthant

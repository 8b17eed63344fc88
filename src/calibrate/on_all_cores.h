// Times kernels while all cores of this machine run them, as the ranks of a run do.
#pragma once

#include <cstdint>
#include <functional>

namespace orthant {

/// Calls `make` on one thread for each core. Each call returns a kernel that reads and writes `bytes` bytes, and each
/// thread makes several of them, so that their operands exceed the caches near its core; 0: one. All threads then
/// repeat their kernels for about `seconds` seconds. Returns the median time that a kernel has computed, over all
/// threads. The turns of other programs on the cores do not count.
double time_on_all_cores(int64_t cores, double seconds, double bytes,
                         const std::function<std::function<void()>()>& make);

}  // namespace orthant

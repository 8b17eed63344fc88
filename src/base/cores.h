// The cores that this process may use, and work on all of them.
#pragma once

#include <cstddef>
#include <functional>

namespace orthant {

/// Number of cores that this process may use; at least 1.
int available_cores();

/// Calls work(index, worker) for each index below `count`, on one thread per available core. Calls with the same
/// `worker` do not overlap. Rethrows the first exception, after all threads have stopped.
void for_each_on_all_cores(size_t count, const std::function<void(size_t index, size_t worker)>& work);

}  // namespace orthant

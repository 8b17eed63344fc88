// Work on all cores that this process may use.
#pragma once

#include <cstddef>
#include <functional>

namespace orthant {

/// Number of cores that this process may use; at least 1.
int usable_cores();

/// Calls work(index, core) for each index below `count`, on as many threads as there are usable cores. Calls with the
/// same `core` do not overlap. Rethrows the first exception, after all threads have stopped.
void for_each_on_all_cores(size_t count, const std::function<void(size_t index, size_t core)>& work);

}  // namespace orthant

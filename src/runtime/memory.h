// The allocator of all CPU tensors. It counts every byte, and caches freed blocks for later tensors of the same size.
// Without the cache, the kernel would charge a page fault for each page of a new large block.
#pragma once

#include <cstdint>

namespace orthant {

/// Makes it libtorch's CPU allocator. Call it before the first tensor is created; later calls change nothing.
void install_counting_allocator();

/// Bytes in live tensors now, and the maximum since the last reset. Both are 0 if the allocator is not installed.
int64_t allocated_bytes();
int64_t peak_allocated_bytes();
void reset_peak_allocated_bytes();

}  // namespace orthant

// The allocator of all CPU tensors: counts every byte, and keeps freed blocks for the next tensor of their size.
#pragma once

#include <cstdint>

namespace orthant {

/// Makes it libtorch's CPU allocator; before the first tensor. Calling it again does nothing.
void install_counting_allocator();

/// Bytes in tensors now, and the most there have been since the last reset. 0 when it is not installed.
int64_t allocated_bytes();
int64_t peak_allocated_bytes();
void reset_peak_allocated_bytes();

}  // namespace orthant

// The CUDA device of this process. In builds without CUDA, cuda_problem() says so, and the functions that take a device
// throw LogicError.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace orthant {

/// The reason why this process cannot train on a CUDA device, to follow "because"; empty if it can.
std::string cuda_problem();

/// Makes libtorch's allocator grow its blocks ("expandable segments"), which wastes less memory between tensors of
/// different sizes. PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF take precedence. Call it before the first CUDA
/// tensor.
void use_expandable_segments();

struct DeviceMemory {
  int64_t total_bytes = 0, available_bytes = 0;
};
/// Total and free memory of a CUDA device.
DeviceMemory read_cuda_memory(at::Device device);

/// Bytes in live tensors of a CUDA device: the maximum since the last reset.
int64_t peak_cuda_bytes(at::Device device);
void reset_peak_cuda_bytes(at::Device device);

}  // namespace orthant

// The CUDA device of this process. Builds without CUDA have none.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace orthant {

/// The reason why this process cannot train on a CUDA device, as the end of a sentence after "because"; empty if it can.
std::string cuda_problem();

/// Lets libtorch's allocator grow its blocks ("expandable segments"), so that tensors of many sizes leave few gaps, unless
/// the environment configures the allocator. Must be called before the first CUDA tensor exists.
void use_expandable_segments();

struct DeviceMemory {
  int64_t total_bytes = 0, available_bytes = 0;
};
/// Memory of a CUDA device, and what other processes and this one have left of it.
DeviceMemory cuda_memory(at::Device device);

/// Bytes in live tensors of a CUDA device: the maximum since the last reset.
int64_t peak_cuda_bytes(at::Device device);
void reset_peak_cuda_bytes(at::Device device);

/// Waits until a CUDA device has done all work that this process gave it; returns at once for the CPU.
void wait_for_device(at::Device device);

}  // namespace orthant

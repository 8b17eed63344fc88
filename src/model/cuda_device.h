// The CUDA devices of this process. In builds without CUDA, cuda_problem() says so, and the other functions that need a
// device throw LogicError.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/gpu.h"

namespace orthant {

/// The reason why this process cannot train on a CUDA device, to follow "because"; empty if it can.
std::string cuda_problem();

/// Number of devices that this process sees.
int count_cuda_devices();
/// Makes this thread use the device with this index, from 0 to count_cuda_devices() - 1.
void select_cuda_device(int index);
/// The device that this thread uses: device 0 unless select_cuda_device() has chosen another.
at::Device selected_cuda_device();

/// Copies a tensor of the CPU to the device, from pinned memory: the copy waits for its turn on the device, and the
/// host does not wait. Returns the tensor itself for the CPU.
at::Tensor copy_to_device(const at::Tensor& host, at::Device device);

/// A copy of a tensor in host memory, made when the device has done the work that precedes it on the current stream.
class HostCopy {
 public:
  /// Begins the copy. The host does not wait, and later work on the device may change the tensor.
  explicit HostCopy(const at::Tensor& tensor);
  /// Waits until the copy is there, but for no later work of the device.
  const at::Tensor& get();

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_;  // empty for a CPU tensor
};

/// The UUID and the model of a device.
Gpu identify_cuda_device(at::Device device);

/// Sets environment variables that the user has not set. PYTORCH_ALLOC_CONF: libtorch's allocator grows its blocks
/// ("expandable segments"), which wastes less memory between tensors of different sizes. With several ranks also
/// CUDA_DEVICE_MAX_CONNECTIONS: no streams share a hardware queue, in which one would wait for another. Call it before
/// the first CUDA tensor.
void set_cuda_defaults(int ranks);

struct DeviceMemory {
  int64_t total_bytes = 0, available_bytes = 0;
};
/// Total and free memory of a CUDA device.
DeviceMemory read_cuda_memory(at::Device device);

/// Bytes in live tensors of a CUDA device: the maximum since the last reset.
int64_t peak_cuda_bytes(at::Device device);
void reset_peak_cuda_bytes(at::Device device);

}  // namespace orthant

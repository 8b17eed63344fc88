#include "model/cuda_device.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "base/errors.h"

#ifdef ORTHANT_CUDA
#include <c10/core/CachingDeviceAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace orthant {

void set_cuda_defaults(int ranks) {
  if (std::getenv("PYTORCH_CUDA_ALLOC_CONF") == nullptr) setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True", 0);
  if (ranks > 1) setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

at::Tensor copy_to_device(const at::Tensor& host, at::Device device) {
  return device.is_cuda() ? host.pin_memory().to(device, /*non_blocking=*/true) : host;
}

HostCopy::HostCopy(const at::Tensor& tensor) {
  const bool is_cpu = tensor.is_cpu();
  host_ = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(!is_cpu));
  host_.copy_(tensor, /*non_blocking=*/true);
  if (is_cpu) return;
  copied_.emplace(tensor.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
}

const at::Tensor& HostCopy::get() {
  if (copied_) copied_->synchronize();
  return host_;
}

#ifdef ORTHANT_CUDA

namespace {

c10::DeviceAllocator& allocator() {
  at::globalContext().lazyInitDevice(at::kCUDA);
  return *c10::getDeviceAllocator(at::kCUDA);
}

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw Error(fmt::format("CUDA cannot {}: {}", what, cudaGetErrorString(error)));
}

}  // namespace

std::string cuda_problem() {
  int devices = 0, driver = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return "";
  cudaDriverGetVersion(&driver);
  if (driver == 0) return "this machine has no NVIDIA driver (nvidia-smi shows whether there is one)";
  if (error == cudaErrorInsufficientDriver) {
    return fmt::format("the NVIDIA driver supports CUDA {}.{}, but this build needs {}.{}; install a newer driver",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) {
    return "CUDA finds no device (CUDA_VISIBLE_DEVICES may hide it)";
  }
  return fmt::format("CUDA cannot count the devices: {}", cudaGetErrorString(error));
}

int count_cuda_devices() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "count the devices");
  return devices;
}

void select_cuda_device(int index) { check(cudaSetDevice(index), "select the device"); }

at::Device selected_cuda_device() {
  int index = 0;
  check(cudaGetDevice(&index), "find the selected device");
  return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
}

Gpu identify_cuda_device(at::Device device) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device.index()), "describe the device");
  std::string uuid;
  for (const char byte : properties.uuid.bytes) uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return {.uuid = uuid, .model = properties.name};
}

DeviceMemory read_cuda_memory(at::Device device) {
  size_t available = 0, total = 0;
  check(cudaSetDevice(device.index()), "select the device");
  check(cudaMemGetInfo(&available, &total), "read the device's memory");
  return {static_cast<int64_t>(total), static_cast<int64_t>(available)};
}

int64_t peak_cuda_bytes(at::Device device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return allocator().getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

void reset_peak_cuda_bytes(at::Device device) { allocator().resetPeakStats(device.index()); }

#else

std::string cuda_problem() { return "this build of Orthant has no CUDA; make build CUDA=1 makes one that has"; }
int count_cuda_devices() { throw LogicError(cuda_problem()); }
void select_cuda_device(int) { throw LogicError(cuda_problem()); }
at::Device selected_cuda_device() { throw LogicError(cuda_problem()); }
Gpu identify_cuda_device(at::Device) { throw LogicError(cuda_problem()); }
DeviceMemory read_cuda_memory(at::Device) { throw LogicError(cuda_problem()); }
int64_t peak_cuda_bytes(at::Device) { throw LogicError(cuda_problem()); }
void reset_peak_cuda_bytes(at::Device) { throw LogicError(cuda_problem()); }

#endif

}  // namespace orthant

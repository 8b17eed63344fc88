#include "model/device_kernels.h"

#include <ATen/ATen.h>

#include <cstdlib>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/errors.h"
#include "model/aten_kernels.h"
#include "model/element.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/reduce.h"

#ifdef ORTHANT_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace orthant {
namespace {

// Calls the implementation for the device. `cuda` takes a stream; a build without CUDA does not compile its body.
template <class Simd, class Aten, class Cuda>
void on_device(at::Device device, const Simd& simd, const Aten& aten, [[maybe_unused]] const Cuda& cuda) {
  if (device.is_cpu()) return cpu_uses_aten_kernels() ? aten() : simd();
#ifdef ORTHANT_CUDA
  if (device.is_cuda()) return cuda(c10::cuda::getCurrentCUDAStream(device.index()).stream());
#endif
  aten();
}

}  // namespace

bool cpu_uses_aten_kernels() {
  static const bool uses = [] {
    const char* text = std::getenv("ORTHANT_KERNELS");
    const std::string_view value = text == nullptr ? "simd" : text;
    if (value != "simd" && value != "aten") {
      throw ConfigError(fmt::format("the environment variable ORTHANT_KERNELS = {} must be simd or aten", value));
    }
    return value == "aten";
  }();
  return uses;
}

template <class T>
void rms_norm_backward(at::Device device, const RmsNormBackward<T>& args) {
  on_device(
      device, [&] { rms_norm_backward(args); }, [&] { aten_kernels::rms_norm_backward(device, args); },
      [&](auto stream) {
        const auto wide = std::is_same_v<T, double> ? at::kDouble : at::kFloat;
        const at::Tensor partial = at::empty({cuda_kernels::rms_norm_partial_rows(args.rows), args.cols},
                                             at::TensorOptions(device).dtype(wide));
        cuda_kernels::rms_norm_backward(args, out<Wide<T>>(partial), stream);
      });
}

#define ORTHANT_INSTANCES(function, Args)                      \
  template void function(at::Device, const Args<float>& args); \
  template void function(at::Device, const Args<double>& args);
#define ORTHANT_INSTANCES_OF_ELEMENTS(function, Args) \
  ORTHANT_INSTANCES(function, Args)                   \
  template void function(at::Device, const Args<Bf16>& args);
// Defines the function by its implementations, for the types that ORTHANT_INSTANCES or the other macro lists.
#define ORTHANT_DEVICE_KERNEL(INSTANCES, function, Args)                                                   \
  template <class T>                                                                                       \
  void function(at::Device device, const Args<T>& args) {                                                  \
    on_device(                                                                                             \
        device, [&] { static_cast<void>(function(args)); }, [&] { aten_kernels::function(device, args); }, \
        [&](auto stream) { cuda_kernels::function(args, stream); });                                       \
  }                                                                                                        \
  INSTANCES(function, Args)
ORTHANT_INSTANCES_OF_ELEMENTS(rms_norm_backward, RmsNormBackward)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, rms_norm_forward, RmsNormForward)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, rms_norm_squares, RmsNormSquares)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, rms_norm_dots, RmsNormDots)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, swiglu_forward, SwigluForward)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, swiglu_backward, SwigluBackward)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, rope_split_forward, RopeSplitForward)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, rope_split_backward, RopeSplitBackward)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, dropout, Dropout)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, softmax_cross_entropy, SoftmaxCrossEntropy)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, softmax_statistics, SoftmaxShard)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, softmax_loss, SoftmaxShard)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES_OF_ELEMENTS, softmax_exponentials, SoftmaxExponentials)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES, adamw, AdamW)
ORTHANT_DEVICE_KERNEL(ORTHANT_INSTANCES, sgd, Sgd)
#undef ORTHANT_DEVICE_KERNEL
#undef ORTHANT_INSTANCES
#undef ORTHANT_INSTANCES_OF_ELEMENTS

void decide_update(at::Device device, const UpdateDecision& args) {
  on_device(
      device, [&] { decide_update(args); }, [&] { aten_kernels::decide_update(device, args); },
      [&](auto stream) { cuda_kernels::decide_update(args, stream); });
}

void SquaresSum::add(const at::Tensor& x) {
  if (x.numel() == 0) return;
  ORTHANT_CHECK(x.dim() == 1 && x.is_contiguous(), x.dim());
  const auto add_as = [&]<class T>(T) {
    on_device(
        x.device(), [&] { add_squares(in<T>(x), x.numel(), sum_); }, [&] { aten_kernels::add_squares(x, sum_); },
        [&](auto stream) {
          if (!digits_.defined()) digits_ = at::zeros({ExactSum::kNumbers}, x.options().dtype(at::kLong));
          auto* digits = out<int64_t>(digits_);
          cuda_kernels::add_squares(in<T>(x), x.numel(), digits, digits + ExactSum::kDigits, stream);
        });
  };
  x.scalar_type() == at::kDouble ? add_as(double{}) : add_as(float{});
}

void SquaresSum::write_numbers(const at::Tensor& numbers) const {
#ifdef ORTHANT_CUDA
  if (digits_.defined() && numbers.is_cuda()) {
    const auto* digits = in<int64_t>(digits_);
    return cuda_kernels::write_numbers(digits, digits + ExactSum::kDigits, out<double>(numbers),
                                       c10::cuda::getCurrentCUDAStream(numbers.device().index()).stream());
  }
#endif
  const at::Tensor host = at::empty({ExactSum::kNumbers}, at::kDouble);
  std::ranges::copy(total().numbers(), host.mutable_data_ptr<double>());
  numbers.copy_(copy_to_device(host, numbers.device()));
}

ExactSum SquaresSum::total() const {
  ExactSum sum = sum_;
  if (digits_.defined()) {
    const at::Tensor host = digits_.cpu();
    const std::span<const int64_t, ExactSum::kNumbers> all(host.const_data_ptr<int64_t>(), ExactSum::kNumbers);
    sum.add_digits(all.first<ExactSum::kDigits>(), all.back() > 0);
  }
  return sum;
}

}  // namespace orthant

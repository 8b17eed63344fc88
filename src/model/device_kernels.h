// The fused kernels on the device that holds the tensors. Each function takes the arguments of the function with the
// same name in model/kernels/, as pointers to memory of that device, and starts the work there. There are three
// implementations: Highway's vectors (CPU), CUDA, and ATen's operators, which run on every device and test the others.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/exact_sum.h"
#include "model/kernels/activation.h"
#include "model/kernels/loss.h"
#include "model/kernels/loss_exponentials.h"
#include "model/kernels/norm.h"
#include "model/kernels/optimizer.h"
#include "model/kernels/random.h"
#include "model/kernels/rotary.h"

namespace orthant {

/// The kernels of norm.h, activation.h, rotary.h and random.h. T is float, Bf16 or double.
template <class T>
void rms_norm_forward(at::Device device, const RmsNormForward<T>& args);
template <class T>
void rms_norm_squares(at::Device device, const RmsNormSquares<T>& args);
template <class T>
void rms_norm_dots(at::Device device, const RmsNormDots<T>& args);
template <class T>
void rms_norm_backward(at::Device device, const RmsNormBackward<T>& args);
template <class T>
void swiglu_forward(at::Device device, const SwigluForward<T>& args);
template <class T>
void swiglu_backward(at::Device device, const SwigluBackward<T>& args);
template <class T>
void rope_split_forward(at::Device device, const RopeSplitForward<T>& args);
template <class T>
void rope_split_backward(at::Device device, const RopeSplitBackward<T>& args);
template <class T>
void dropout(at::Device device, const Dropout<T>& args);

/// The kernels of loss.h and loss_exponentials.h. Each label must be in [0, vocab) or kIgnoredLabel, which no kernel of
/// a GPU checks. `losses` and `statistics` are on the device. T is float, Bf16 or double.
template <class T>
void softmax_cross_entropy(at::Device device, const SoftmaxCrossEntropy<T>& args);
template <class T>
void softmax_statistics(at::Device device, const SoftmaxShard<T>& args);
template <class T>
void softmax_loss(at::Device device, const SoftmaxShard<T>& args);
template <class T>
void softmax_exponentials(at::Device device, const SoftmaxExponentials<T>& args);

/// The kernels of optimizer.h. T is float or double.
template <class T>
void adamw(at::Device device, const AdamW<T>& args);
template <class T>
void sgd(at::Device device, const Sgd<T>& args);
void decide_update(at::Device device, const UpdateDecision& args);

/// The sum of the squares of tensors, with the same bits in every order of add(): see add_squares() in
/// kernels/reduce.h. The squares of CUDA tensors are added on their device, and only total() waits for it.
class SquaresSum {
 public:
  /// Adds the squares of x, one-dimensional and dense, in float32 or float64. A NaN makes the sum infinite or NaN.
  void add(const at::Tensor& x);
  ExactSum total() const;
  /// Writes total().numbers() into a float64 tensor on the CPU or on the device of the tensors. It waits for the device
  /// only if `numbers` are on the CPU and the tensors are not.
  void write_numbers(const at::Tensor& numbers) const;

 private:
  ExactSum sum_;
  at::Tensor digits_;  // int64 on a CUDA device: digits, and the number of addends above the range
};

/// True if ATen's operators replace the CPU's kernels, as the environment variable ORTHANT_KERNELS=aten requests (for
/// tests). Throws ConfigError if the variable is neither "aten" nor "simd".
bool cpu_uses_aten_kernels();

}  // namespace orthant

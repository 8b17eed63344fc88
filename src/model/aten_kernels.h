// The fused kernels as sequences of ATen's operators, for any device, in the precision of the kernels in
// model/kernels/. They are slower and need more memory, because every intermediate result is a tensor.
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

namespace orthant::aten_kernels {

/// Each function computes what the function with its name in model/kernels/ computes, on memory of the device.
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
template <class T>
void softmax_cross_entropy(at::Device device, const SoftmaxCrossEntropy<T>& args);
template <class T>
void softmax_statistics(at::Device device, const SoftmaxShard<T>& args);
template <class T>
void softmax_loss(at::Device device, const SoftmaxShard<T>& args);
template <class T>
void softmax_exponentials(at::Device device, const SoftmaxExponentials<T>& args);
template <class T>
void adamw(at::Device device, const AdamW<T>& args);
template <class T>
void sgd(at::Device device, const Sgd<T>& args);
/// As decide_update() in kernels/optimizer.h; waits for the device.
void decide_update(at::Device device, const UpdateDecision& args);
/// As add_squares() in kernels/reduce.h; waits for the device of x.
void add_squares(const at::Tensor& x, ExactSum& sum);

}  // namespace orthant::aten_kernels

// The fused kernels for CUDA devices, in builds with ORTHANT_CUDA. Each function enqueues its kernels on a stream and
// returns. It throws std::runtime_error if CUDA cannot launch them. Sums have one order for each shape, so that runs
// with the same shapes give the same bits.
#pragma once

#include "model/kernels/activation.h"
#include "model/kernels/loss.h"
#include "model/kernels/loss_exponentials.h"
#include "model/kernels/norm.h"
#include "model/kernels/optimizer.h"
#include "model/kernels/random.h"
#include "model/kernels/reduce.h"
#include "model/kernels/rotary.h"

struct CUstream_st;

namespace orthant::cuda_kernels {

/// CUDA's cudaStream_t.
using Stream = CUstream_st*;

/// Each function computes what the function with its name in model/kernels/ computes, from memory of the device.
template <class T>
void rms_norm_forward(const RmsNormForward<T>& args, Stream stream);
template <class T>
void rms_norm_squares(const RmsNormSquares<T>& args, Stream stream);
template <class T>
void rms_norm_dots(const RmsNormDots<T>& args, Stream stream);
template <class T>
void swiglu_forward(const SwigluForward<T>& args, Stream stream);
template <class T>
void swiglu_backward(const SwigluBackward<T>& args, Stream stream);
template <class T>
void rope_split_forward(const RopeSplitForward<T>& args, Stream stream);
template <class T>
void rope_split_backward(const RopeSplitBackward<T>& args, Stream stream);
template <class T>
void dropout(const Dropout<T>& args, Stream stream);
template <class T>
void softmax_cross_entropy(const SoftmaxCrossEntropy<T>& args, Stream stream);
template <class T>
void softmax_statistics(const SoftmaxShard<T>& args, Stream stream);
template <class T>
void softmax_loss(const SoftmaxShard<T>& args, Stream stream);
template <class T>
void softmax_exponentials(const SoftmaxExponentials<T>& args, Stream stream);
template <class T>
void adamw(const AdamW<T>& args, Stream stream);
template <class T>
void sgd(const Sgd<T>& args, Stream stream);

/// rms_norm_backward() of norm.h. `partial` is scratch memory of [rms_norm_partial_rows(rows), cols], for sums of
/// dgamma.
int64_t rms_norm_partial_rows(int64_t rows);
template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args, Wide<T>* partial, Stream stream);

/// Adds the squares of x to the digits of an ExactSum, and 1 to `above_range` for each block of kNormBlockElements
/// elements whose sum is above the ExactSum's range or NaN.
template <class T>
void add_squares(const T* x, int64_t count, int64_t* digits, int64_t* above_range, Stream stream);
/// Writes ExactSum::numbers() of the sum that add_squares() has made.
void write_numbers(const int64_t* digits, const int64_t* above_range, double* numbers, Stream stream);
void decide_update(const UpdateDecision& args, Stream stream);

}  // namespace orthant::cuda_kernels

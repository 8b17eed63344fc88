// Softmax cross-entropy: one block of threads for each row of logits, which it reads twice.
#include "base/labels.h"
#include "model/kernels/cuda/device-inl.cuh"
#include "model/kernels/cuda/kernels.h"

namespace orthant::cuda_kernels {
namespace {

constexpr int kBlock = 512;

// The maximum over the block, in every thread.
template <class N>
__device__ inline N max_over_block(N value) {
  __shared__ N of_warps[kBlock / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmax(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < kBlock / kWarp; ++warp) value = fmax(value, of_warps[warp]);
  return value;
}

template <class T, int N, bool kCapped>
__global__ void cross_entropy_row(SoftmaxCrossEntropy<T> args) {
  using W = Wide<T>;
  const int64_t row = blockIdx.x, label = args.labels[row];
  T* products = args.logits + row * args.vocab;
  const int64_t first = threadIdx.x * N, step = kBlock * N;
  if (label == kIgnoredLabel) {
    if (threadIdx.x == 0) args.losses[row] = 0;
    const W zeros[N] = {};
    for (int64_t i = first; i < args.vocab && args.write_gradient; i += step) store(zeros, products + i);
    return;
  }
  const auto cap = static_cast<W>(args.loss.softcap), inverse = static_cast<W>(kCapped ? 1 / args.loss.softcap : 0);
  const auto logit_of = [&](W product) { return kCapped ? cap * tanh(product * inverse) : product; };

  // Each thread keeps the sum of exponentials relative to its own maximum, and rescales it when the maximum grows.
  // fmax() ignores a NaN, but the sum does not, so a NaN makes the loss NaN.
  W top = -INFINITY, sum = 0;
  double total = 0;
  for (int64_t i = first; i < args.vocab; i += step) {
    W z[N];
    load(products + i, z);
    W most = top;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      z[j] = logit_of(z[j]);
      most = fmax(most, z[j]);
    }
    if (most > top) {
      sum *= exp(top - most);
      top = most;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) sum += z[j] == -INFINITY ? W{0} : exp(z[j] - top);
    if (args.loss.smoothing > 0) {
#pragma unroll
      for (int j = 0; j < N; ++j) total += static_cast<double>(z[j]);
    }
  }
  const W row_top = max_over_block(top);
  const double rescale = top == -INFINITY ? 1 : exp(static_cast<double>(top - row_top));
  const double scaled = static_cast<double>(sum) * rescale;
  const double row_sum = sum_over_row<kBlock>(scaled);
  const W picked = logit_of(widen(products[label]));
  const double log_sum = log(row_sum), log_all = log_sum + static_cast<double>(row_top);
  const auto vocabulary = static_cast<double>(args.vocab);
  double loss = log_sum + (static_cast<double>(row_top) - static_cast<double>(picked));
  double factor = args.scale / row_sum, uniform = 0, of_label = args.scale;
  if (args.loss.smoothing > 0) {
    total = sum_over_row<kBlock>(total);
    loss += args.loss.smoothing * (static_cast<double>(picked) - total / vocabulary);
    uniform = args.scale * args.loss.smoothing / vocabulary;
    of_label = args.scale * (1 - args.loss.smoothing) + uniform;
  }
  if (args.loss.z_weight > 0) {
    loss += args.loss.z_weight * log_all * log_all;
    factor *= 1 + 2 * args.loss.z_weight * log_all;
  }
  if (threadIdx.x == 0) args.losses[row] = loss;
  if (!args.write_gradient) return;
  __syncthreads();  // every thread has read the label's product
  const auto by = static_cast<W>(factor), everywhere = static_cast<W>(uniform), there = static_cast<W>(of_label);
  for (int64_t i = first; i < args.vocab; i += step) {
    W z[N];
    load(products + i, z);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const W bend = kCapped ? tanh(z[j] * inverse) : W{0};
      const W logit = kCapped ? cap * bend : z[j];
      z[j] = exp(logit - row_top) * by - (i + j == label ? there : everywhere);
      if (kCapped) z[j] *= 1 - bend * bend;
    }
    store(z, products + i);
  }
}

template <class T, int N>
void launch(const SoftmaxCrossEntropy<T>& args, Stream stream) {
  const auto rows = static_cast<unsigned>(args.rows);
  if (args.loss.softcap > 0) {
    cross_entropy_row<T, N, true><<<rows, kBlock, 0, stream>>>(args);
  } else {
    cross_entropy_row<T, N, false><<<rows, kBlock, 0, stream>>>(args);
  }
}

}  // namespace

template <class T>
void softmax_cross_entropy(const SoftmaxCrossEntropy<T>& args, Stream stream) {
  if (args.rows == 0) return;
  if (fits_packs<T>(args.vocab, {args.logits})) {
    launch<T, kPackElements<T>>(args, stream);
  } else {
    launch<T, 1>(args, stream);
  }
  check_launch("softmax_cross_entropy");
}

template void softmax_cross_entropy(const SoftmaxCrossEntropy<float>&, Stream);
template void softmax_cross_entropy(const SoftmaxCrossEntropy<double>&, Stream);
template void softmax_cross_entropy(const SoftmaxCrossEntropy<Bf16>&, Stream);

}  // namespace orthant::cuda_kernels

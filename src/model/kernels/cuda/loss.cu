// Softmax cross-entropy: one block of threads for each row of logits, which it reads once for the statistics and once
// for the gradient. The vocabulary may be sharded.
#include "base/labels.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/loss_rows-inl.cuh"

namespace orthant::cuda_kernels {
namespace {

// The statistics of one row of products, in every thread. The label may be in another shard (outside [0, vocab)).
template <class T, int N, bool kCapped>
__device__ SoftmaxStatistics row_statistics(const T* products, int64_t vocab, int64_t label, const OutputLoss& loss) {
  using W = Wide<T>;
  const Logits<W, kCapped> logits(loss);
  // Each thread keeps the sum of exponentials relative to its own maximum, and rescales it when the maximum grows.
  // fmax() ignores a NaN, but the sum does not, so a NaN makes the loss NaN.
  W top = logits.of(-INFINITY), sum = 0;
  double total = 0;
  for_own_packs<N, kLossBlock>(vocab, [&](int64_t i) {
    W z[N];
    load(products + i, z);
    W most = top;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      z[j] = logits.of(z[j]);
      most = fmax(most, z[j]);
    }
    if (most > top) {
      sum *= exp(top - most);
      top = most;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) sum += z[j] == -INFINITY ? W{0} : exp(z[j] - top);
    if (loss.smoothing > 0) {
#pragma unroll
      for (int j = 0; j < N; ++j) total += static_cast<double>(z[j]);
    }
  });
  const W row_top = max_over_block(top);
  // NaN in a row of -infinity, as exp(-infinity - -infinity); 0 in a shard without logits.
  const double rescale = vocab > 0 ? exp(static_cast<double>(top - row_top)) : 1;
  SoftmaxStatistics found{static_cast<double>(row_top), sum_over_row<kLossBlock>(static_cast<double>(sum) * rescale), 0,
                          0};
  if (label >= 0 && label < vocab) found.picked = static_cast<double>(logits.of(widen(products[label])));
  if (loss.smoothing > 0) found.total = sum_over_row<kLossBlock>(total);
  return found;
}

// The loss of a row; loss_of() of kernels/loss.cc.
__device__ inline double row_loss(const SoftmaxStatistics& whole, const OutputLoss& loss, int64_t vocabulary) {
  const double log_sum = log(whole.sum), log_all = log_sum + whole.maximum;
  double value = log_sum + (whole.maximum - whole.picked);
  if (loss.smoothing > 0) value += loss.smoothing * (whole.picked - whole.total / static_cast<double>(vocabulary));
  if (loss.z_weight > 0) value += loss.z_weight * log_all * log_all;
  return value;
}

template <class T, int N>
__device__ void clear_row(T* logits, int64_t vocab) {
  const Wide<T> zeros[N] = {};
  for_own_packs<N, kLossBlock>(vocab, [&](int64_t i) { store(zeros, logits + i); });
}

// Overwrites one row of products with the gradient, from the statistics over the full vocabulary. The label may be in
// another shard. The factors are those of row_factors() in kernels/loss.cc.
template <class T, int N, bool kCapped>
__device__ void write_gradient(T* products, int64_t vocab, int64_t label, const SoftmaxStatistics& whole,
                               const OutputLoss& loss, int64_t vocabulary, double scale) {
  using W = Wide<T>;
  double factor = scale / whole.sum, uniform = 0, of_label = scale;
  if (loss.z_weight > 0) factor *= 1 + 2 * loss.z_weight * (log(whole.sum) + whole.maximum);
  if (loss.smoothing > 0) {
    uniform = scale * loss.smoothing / static_cast<double>(vocabulary);
    of_label = scale * (1 - loss.smoothing) + uniform;
  }
  const Logits<W, kCapped> logits(loss);
  const auto top = static_cast<W>(whole.maximum), by = static_cast<W>(factor);
  const auto everywhere = static_cast<W>(uniform), there = static_cast<W>(of_label);
  for_own_packs<N, kLossBlock>(vocab, [&](int64_t i) {
    W z[N];
    load(products + i, z);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const W bend = logits.bend(z[j]);
      z[j] = exp(logits.of(z[j], bend) - top) * by - (i + j == label ? there : everywhere);
      if (kCapped) z[j] *= 1 - bend * bend;
    }
    store(z, products + i);
  });
}

// Writes the loss and the gradient of a row whose label is ignored, zeros. Returns whether it is.
template <class T, int N, class Args>
__device__ inline bool clear_if_ignored(const Args& args, int64_t row) {
  if (args.labels[row] != kIgnoredLabel) return false;
  if (threadIdx.x == 0) args.losses[row] = 0;
  if (args.write_gradient) clear_row<T, N>(args.logits + row * args.vocab, args.vocab);
  return true;
}

template <class T, int N, bool kCapped>
__global__ void cross_entropy_row(SoftmaxCrossEntropy<T> args) {
  const int64_t row = blockIdx.x, label = args.labels[row];
  T* products = args.logits + row * args.vocab;
  if (clear_if_ignored<T, N>(args, row)) return;
  const SoftmaxStatistics whole = row_statistics<T, N, kCapped>(products, args.vocab, label, args.loss);
  if (threadIdx.x == 0) args.losses[row] = row_loss(whole, args.loss, args.vocab);
  if (!args.write_gradient) return;
  __syncthreads();  // every thread has read the label's product
  write_gradient<T, N, kCapped>(products, args.vocab, label, whole, args.loss, args.vocab, args.scale);
}

template <class T, int N, bool kCapped>
__global__ void statistics_row(SoftmaxShard<T> args) {
  const int64_t row = blockIdx.x;
  const SoftmaxStatistics found = row_statistics<T, N, kCapped>(args.logits + row * args.vocab, args.vocab,
                                                                args.labels[row] - args.first, args.loss);
  if (threadIdx.x == 0) args.statistics[row] = found;
}

template <class T, int N, bool kCapped>
__global__ void loss_row(SoftmaxShard<T> args) {
  const int64_t row = blockIdx.x, label = args.labels[row];
  T* products = args.logits + row * args.vocab;
  if (clear_if_ignored<T, N>(args, row)) return;
  const SoftmaxStatistics whole = args.statistics[row];
  if (threadIdx.x == 0) args.losses[row] = row_loss(whole, args.loss, args.vocabulary);
  if (!args.write_gradient) return;
  write_gradient<T, N, kCapped>(products, args.vocab, label - args.first, whole, args.loss, args.vocabulary,
                                args.scale);
}

}  // namespace

template <class T>
void softmax_cross_entropy(const SoftmaxCrossEntropy<T>& args, Stream stream) {
  for_rows<T>(args, fits_packs<T>(args.vocab, {args.logits}), [&]<int N, bool kCapped>(unsigned rows) {
    cross_entropy_row<T, N, kCapped><<<rows, kLossBlock, 0, stream>>>(args);
  });
  check_launch("softmax_cross_entropy");
}

template <class T>
void softmax_statistics(const SoftmaxShard<T>& args, Stream stream) {
  for_rows<T>(args, fits_packs<T>(args.vocab, {args.logits}), [&]<int N, bool kCapped>(unsigned rows) {
    statistics_row<T, N, kCapped><<<rows, kLossBlock, 0, stream>>>(args);
  });
  check_launch("softmax_statistics");
}

template <class T>
void softmax_loss(const SoftmaxShard<T>& args, Stream stream) {
  for_rows<T>(args, fits_packs<T>(args.vocab, {args.logits}), [&]<int N, bool kCapped>(unsigned rows) {
    loss_row<T, N, kCapped><<<rows, kLossBlock, 0, stream>>>(args);
  });
  check_launch("softmax_loss");
}

template void softmax_cross_entropy(const SoftmaxCrossEntropy<float>&, Stream);
template void softmax_cross_entropy(const SoftmaxCrossEntropy<double>&, Stream);
template void softmax_cross_entropy(const SoftmaxCrossEntropy<Bf16>&, Stream);
template void softmax_statistics(const SoftmaxShard<float>&, Stream);
template void softmax_statistics(const SoftmaxShard<double>&, Stream);
template void softmax_statistics(const SoftmaxShard<Bf16>&, Stream);
template void softmax_loss(const SoftmaxShard<float>&, Stream);
template void softmax_loss(const SoftmaxShard<double>&, Stream);
template void softmax_loss(const SoftmaxShard<Bf16>&, Stream);

}  // namespace orthant::cuda_kernels

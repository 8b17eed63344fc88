// Softmax over a vocabulary shard, stored until the statistics over the full vocabulary are known.
#include "base/labels.h"
#include "model/kernels/cuda/kernels.h"
#include "model/kernels/cuda/loss_rows-inl.cuh"

namespace orthant::cuda_kernels {
namespace {

template <class T, int N, bool kCapped>
__global__ void exponentials_row(SoftmaxExponentials<T> args) {
  using W = Wide<T>;
  const int64_t row = blockIdx.x, offset = row * args.vocab, label = args.labels[row] - args.first;
  const bool here = label >= 0 && label < args.vocab, is_ignored = args.labels[row] == kIgnoredLabel;
  const W* products = args.logits + offset;
  const Logits<W, kCapped> logits(args.loss);
  W top;
  if (args.has_maximum) {
    top = static_cast<W>(args.statistics[row].maximum);
  } else {
    W most = -INFINITY;
    for_own_packs<N, kLossBlock>(args.vocab, [&](int64_t i) {
      W y[N];
      load(products + i, y);
#pragma unroll
      for (int j = 0; j < N; ++j) most = fmax(most, y[j]);
    });
    top = logits.of(max_over_block(most));
  }
  const W picked = here ? products[label] : W{0};
  __syncthreads();  // every thread has read the label's product, whose memory may receive an exponential
  W sum = 0;
  double total = 0;
  for_own_packs<N, kLossBlock>(args.vocab, [&](int64_t i) {
    W values[N], slopes[N];
    load(products + i, values);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const W bend = logits.bend(values[j]), logit = logits.of(values[j], bend);
      if (args.loss.smoothing > 0) total += static_cast<double>(logit);
      values[j] = exp(logit - top);
      sum += values[j];
      slopes[j] = is_ignored ? W{0} : 1 - bend * bend;
      if (kCapped) values[j] *= slopes[j];
      if (is_ignored || i + j == label) values[j] = 0;
    }
    if (args.exponentials != nullptr) store(values, args.exponentials + offset + i);
    if (kCapped && args.slopes != nullptr) store(slopes, args.slopes + offset + i);
  });
  const double row_sum = sum_over_row<kLossBlock>(static_cast<double>(sum));
  if (args.loss.smoothing > 0) total = sum_over_row<kLossBlock>(total);
  if (threadIdx.x != 0) return;
  args.statistics[row] = {static_cast<double>(top), row_sum, here ? static_cast<double>(logits.of(picked)) : 0, total};
  if (kCapped && args.label_slopes != nullptr) {
    const auto bend = static_cast<double>(logits.bend(picked));
    args.label_slopes[row] = 1 - bend * bend;
  }
}

}  // namespace

template <class T>
void softmax_exponentials(const SoftmaxExponentials<T>& args, Stream stream) {
  using W = Wide<T>;
  const bool packs = fits_packs<W>(args.vocab, {args.logits}) &&
                     fits_packs<T, kPackElements<W>>(args.vocab, {args.exponentials, args.slopes});
  for_rows<W>(args, packs, [&]<int N, bool kCapped>(unsigned rows) {
    exponentials_row<T, N, kCapped><<<rows, kLossBlock, 0, stream>>>(args);
  });
  check_launch("softmax_exponentials");
}

template void softmax_exponentials(const SoftmaxExponentials<float>&, Stream);
template void softmax_exponentials(const SoftmaxExponentials<double>&, Stream);
template void softmax_exponentials(const SoftmaxExponentials<Bf16>&, Stream);

}  // namespace orthant::cuda_kernels

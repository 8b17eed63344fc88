// One row of logits by a block of kLossBlock threads. Each thread reads packs of N elements.
#pragma once

#include "model/kernels/cuda/device-inl.cuh"
#include "model/kernels/loss.h"

namespace orthant::cuda_kernels {

constexpr int kLossBlock = 512;

/// Converts products of the head to logits, by soft-capping if kCapped. Every read of a product caps it again, so that
/// a value stored in few bits is rounded only once.
template <class W, bool kCapped>
struct Logits {
  W cap, inverse;

  __device__ explicit Logits(const OutputLoss& loss)
      : cap(static_cast<W>(loss.softcap)), inverse(static_cast<W>(kCapped ? 1 / loss.softcap : 0)) {}
  /// The capped logit divided by the cap; 0 without capping. The derivative of the logit is 1 - bend^2.
  __device__ W bend(W product) const { return kCapped ? tanh(product * inverse) : W{0}; }
  __device__ W of(W product, W bend) const { return kCapped ? cap * bend : product; }
  __device__ W of(W product) const { return of(product, bend(product)); }
};

/// The maximum over the block, in every thread. A kernel calls it at most once.
template <class N>
__device__ inline N max_over_block(N value) {
  __shared__ N of_warps[kLossBlock / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) value = fmax(value, __shfl_xor_sync(0xffffffffu, value, step));
  if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = of_warps[0];
  for (int warp = 1; warp < kLossBlock / kWarp; ++warp) value = fmax(value, of_warps[warp]);
  return value;
}

/// Calls launch.operator()<N, kCapped>(rows) with the elements of a pack of T, or 1 if rows do not fit packs.
template <class T, class Args, class Launch>
void for_rows(const Args& args, bool packs, const Launch& launch) {
  const auto rows = static_cast<unsigned>(args.rows);
  if (rows == 0) return;
  const bool capped = args.loss.softcap > 0;
  if (packs && capped) return launch.template operator()<kPackElements<T>, true>(rows);
  if (packs) return launch.template operator()<kPackElements<T>, false>(rows);
  if (capped) return launch.template operator()<1, true>(rows);
  launch.template operator()<1, false>(rows);
}

}  // namespace orthant::cuda_kernels

// Helpers of the CUDA kernels: packs of elements, and sums over the threads of a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "model/kernels/element.h"

namespace orthant::cuda_kernels {

constexpr int kWarp = 32;

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(Bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
template <class T>
__device__ inline T narrow(Wide<T> x) {
  if constexpr (sizeof(T) == 2) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  } else {
    return x;
  }
}

/// N adjacent elements, which one instruction loads or stores. Their address must be a multiple of their size.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

/// Number of elements in 16 bytes, the largest pack.
template <class T>
constexpr int kPackElements = 16 / sizeof(T);

/// True if rows of `cols` elements at these addresses can be read in packs of N; null pointers are ignored.
template <class T, int N = kPackElements<T>>
bool fits_packs(int64_t cols, std::initializer_list<const void*> rows) {
  return cols % N == 0 && std::all_of(rows.begin(), rows.end(), [](const void* row) {
           return reinterpret_cast<uintptr_t>(row) % (sizeof(T) * N) == 0;
         });
}

template <class T, int N>
__device__ inline void load(const T* from, Wide<T> (&to)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = widen(pack.values[i]);
}
template <class T, int N>
__device__ inline void store(const Wide<T> (&from)[N], T* to) {
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.values[i] = narrow<T>(from[i]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// Calls f with the index of the first element of each pack of this thread, in a row that kThreads threads share.
template <int N, int kThreads, class F>
__device__ inline void for_own_packs(int64_t cols, const F& f) {
  for (int64_t i = threadIdx.x % kThreads * N; i < cols; i += kThreads * N) f(i);
}

/// The sum over the kThreads threads of a row, which every one of them receives. All threads of the block must call it.
/// kThreads is 32, or the size of the block, which is at most 1024.
template <int kThreads, class N>
__device__ inline N sum_over_row(N value) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if constexpr (kThreads > kWarp) {
    __shared__ N of_warps[kThreads / kWarp];
    __syncthreads();  // an earlier sum may still be read
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    value = of_warps[0];
#pragma unroll
    for (int warp = 1; warp < kThreads / kWarp; ++warp) value += of_warps[warp];
  }
  return value;
}

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA cannot launch ") + kernel + ": " + cudaGetErrorString(error));
  }
}

inline unsigned blocks_for(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

}  // namespace orthant::cuda_kernels

// RMS norms. A warp computes a row of at most 1,024 columns, a block of threads a longer one. In the backward pass of
// rows of up to 8,192 columns, a block has several rows and sums its part of dgamma on the way.
#include "model/kernels/cuda/device-inl.cuh"
#include "model/kernels/cuda/kernels.h"

namespace orthant::cuda_kernels {
namespace {

constexpr int kBlock = 256;
constexpr int64_t kColsOfWarp = 1024;  // longest row of a warp

// The row of this thread.
template <int kThreads>
__device__ inline int64_t own_row() {
  return static_cast<int64_t>(blockIdx.x) * (kBlock / kThreads) + threadIdx.x / kThreads;
}

// The sum of squares of a row of s = x + residual, in every thread of the row. Stores s to `sum`. Without residual, s
// is x and `sum` is not written. All threads of the block must call it, those after the last row with cols = 0.
template <int N, int kThreads, class T>
__device__ Wide<T> squares_of_row(const T* x, const T* residual, T* sum, int64_t cols) {
  Wide<T> squares = 0;
  for_own_packs<N, kThreads>(cols, [&](int64_t i) {
    Wide<T> s[N];
    load(x + i, s);
    if (residual != nullptr) {
      Wide<T> added[N];
      load(residual + i, added);
#pragma unroll
      for (int j = 0; j < N; ++j) s[j] = widen(narrow<T>(s[j] + added[j]));
      store(s, sum + i);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) squares += s[j] * s[j];
  });
  return sum_over_row<kThreads>(squares);
}

// The sum of dy * gamma * s over a row, called as squares_of_row() is.
template <int N, int kThreads, class T>
__device__ Wide<T> dot_of_row(const T* dy, const T* s, const T* gamma, int64_t cols) {
  Wide<T> dot = 0;
  for_own_packs<N, kThreads>(cols, [&](int64_t i) {
    Wide<T> from[N], value[N], weight[N];
    load(dy + i, from);
    load(s + i, value);
    load(gamma + i, weight);
#pragma unroll
    for (int j = 0; j < N; ++j) dot += from[j] * weight[j] * value[j];
  });
  return sum_over_row<kThreads>(dot);
}

template <class T, int N, int kThreads>
__global__ void squares_rows(RmsNormSquares<T> args) {
  const int64_t row = own_row<kThreads>(), offset = row * args.cols;
  const bool in_range = row < args.rows, adds = args.residual != nullptr;
  const Wide<T> squares = squares_of_row<N, kThreads>(args.x + offset, adds ? args.residual + offset : nullptr,
                                                      adds ? args.sum + offset : nullptr, in_range ? args.cols : 0);
  if (in_range && threadIdx.x % kThreads == 0) args.squares[row] = squares;
}

template <class T, int N, int kThreads>
__global__ void dots_rows(RmsNormDots<T> args) {
  const int64_t row = own_row<kThreads>(), offset = row * args.cols;
  const bool in_range = row < args.rows;
  const Wide<T> dot = dot_of_row<N, kThreads>(args.dy + offset, args.s + offset, args.gamma, in_range ? args.cols : 0);
  if (in_range && threadIdx.x % kThreads == 0) args.dots[row] = dot;
}

template <class T, int N, int kThreads>
__global__ void forward(RmsNormForward<T> args) {
  const int64_t row = own_row<kThreads>();
  const bool in_range = row < args.rows, adds = args.residual != nullptr;
  const int64_t offset = in_range ? args.groups.offset(row, args.cols) : 0, cols = in_range ? args.cols : 0;
  const T* s = adds ? args.sum + offset : args.x + offset;
  Wide<T> squares = 0;
  if (args.squares == nullptr) {
    squares = squares_of_row<N, kThreads>(args.x + offset, adds ? args.residual + offset : nullptr,
                                          adds ? args.sum + offset : nullptr, cols);
  }
  if (!in_range) return;
  if (args.squares != nullptr) squares = args.squares[row];
  const auto width = static_cast<double>(args.squares != nullptr ? args.width : args.cols);
  const double mean = static_cast<double>(squares) / width;
  const auto rstd = static_cast<Wide<T>>(1.0 / sqrt(mean + args.eps));
  if (threadIdx.x % kThreads == 0) args.rstd[row] = rstd;
  for_own_packs<N, kThreads>(cols, [&](int64_t i) {
    Wide<T> x[N], gamma[N];
    load(s + i, x);
    load(args.gamma + i, gamma);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = x[j] * rstd * gamma[j];
    store(x, args.y + offset + i);
  });
}

template <class T, int N, int kThreads>
__global__ void backward(RmsNormBackward<T> args) {
  const int64_t row = own_row<kThreads>();
  const bool in_range = row < args.rows;
  const int64_t offset = in_range ? args.groups.offset(row, args.cols) : 0, cols = in_range ? args.cols : 0;
  Wide<T> dot = 0;
  if (args.dots == nullptr) dot = dot_of_row<N, kThreads>(args.dy + offset, args.s + offset, args.gamma, cols);
  if (!in_range) return;
  if (args.dots != nullptr) dot = args.dots[row];
  const Wide<T> rstd = args.rstd[row];
  const auto r = static_cast<double>(rstd), width = static_cast<double>(args.dots != nullptr ? args.width : args.cols);
  const auto pull = static_cast<Wide<T>>(r * r * r * static_cast<double>(dot) / width);
  for_own_packs<N, kThreads>(cols, [&](int64_t i) {
    Wide<T> dy[N], s[N], gamma[N], dsum[N] = {};
    load(args.dy + offset + i, dy);
    load(args.s + offset + i, s);
    load(args.gamma + i, gamma);
    if (args.dsum != nullptr) load(args.dsum + offset + i, dsum);
#pragma unroll
    for (int j = 0; j < N; ++j) dy[j] = dy[j] * rstd * gamma[j] - s[j] * pull + dsum[j];
    store(dy, args.dx + offset + i);
  });
}

// Sums dy * s * rstd over a part of the rows: thread i of the grid's first dim has column i, and the second dim counts
// the parts.
template <class T>
__global__ void sum_parts(RmsNormBackward<T> args, int64_t rows_of_part, Wide<T>* partial) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= args.cols) return;
  const int64_t begin = blockIdx.y * rows_of_part;
  const int64_t end = begin + rows_of_part < args.rows ? begin + rows_of_part : args.rows;
  Wide<T> sum = 0;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = args.groups.offset(row, args.cols) + col;
    sum += widen(args.dy[at]) * args.rstd[row] * widen(args.s[at]);
  }
  partial[blockIdx.y * args.cols + col] = sum;
}

// The gradient of s and the sums of sum_parts(), in one pass over memory. A block of threads has a part of the rows.
// Each thread has the same kPacks packs of N columns in each of them.
template <class T, int N, int kPacks>
__global__ void backward_of_parts(RmsNormBackward<T> args, int64_t rows_of_part, Wide<T>* partial) {
  using W = Wide<T>;
  const int64_t begin = blockIdx.x * rows_of_part;
  const int64_t end = begin + rows_of_part < args.rows ? begin + rows_of_part : args.rows;
  const auto width = static_cast<double>(args.dots != nullptr ? args.width : args.cols);
  const auto column_of = [](int pack) { return (pack * kBlock + static_cast<int>(threadIdx.x)) * N; };
  W gamma[kPacks][N] = {}, sums[kPacks][N] = {};
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    if (column_of(pack) < args.cols) load(args.gamma + column_of(pack), gamma[pack]);
  }
  for (int64_t row = begin; row < end; ++row) {
    const int64_t offset = args.groups.offset(row, args.cols);
    W dy[kPacks][N] = {}, s[kPacks][N] = {}, dot = 0;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      if (column_of(pack) >= args.cols) continue;
      load(args.dy + offset + column_of(pack), dy[pack]);
      load(args.s + offset + column_of(pack), s[pack]);
#pragma unroll
      for (int j = 0; j < N; ++j) dot += dy[pack][j] * gamma[pack][j] * s[pack][j];
    }
    dot = args.dots != nullptr ? args.dots[row] : sum_over_row<kBlock>(dot);
    const W rstd = args.rstd[row];
    const auto r = static_cast<double>(rstd);
    const auto pull = static_cast<W>(r * r * r * static_cast<double>(dot) / width);
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      if (column_of(pack) >= args.cols) continue;
      W dsum[N] = {};
      if (args.dsum != nullptr) load(args.dsum + offset + column_of(pack), dsum);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const W scaled = dy[pack][j] * rstd;
        sums[pack][j] += scaled * s[pack][j];
        dsum[j] += scaled * gamma[pack][j] - s[pack][j] * pull;
      }
      store(dsum, args.dx + offset + column_of(pack));
    }
  }
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    for (int j = 0; j < N && column_of(pack) < args.cols; ++j) {
      partial[blockIdx.x * args.cols + column_of(pack) + j] = sums[pack][j];
    }
  }
}

// Adds the parts to the sum, in an order that depends on their number only. A block has 32 columns, and 8 threads for
// each.
template <class N>
__global__ void add_parts(const N* partial, int64_t parts, int64_t cols, N* out) {
  __shared__ N sums[8][kWarp];
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  N sum = 0;
#pragma unroll 4
  for (int64_t part = threadIdx.y; part < parts && col < cols; part += 8) sum += partial[part * cols + col];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || col >= cols) return;
  for (int part = 1; part < 8; ++part) sum += sums[part][threadIdx.x];
  out[col] += sum;
}

// Calls launch.operator()<N, kThreads>() with the elements of a pack and the threads of a row that fit.
template <class T, class Launch>
void with_shape(int64_t cols, bool packs, const Launch& launch) {
  const bool is_short = cols <= kColsOfWarp;
  if (packs && is_short) return launch.template operator()<kPackElements<T>, kWarp>();
  if (packs) return launch.template operator()<kPackElements<T>, kBlock>();
  if (is_short) return launch.template operator()<1, kWarp>();
  launch.template operator()<1, kBlock>();
}

}  // namespace

template <class T>
void rms_norm_forward(const RmsNormForward<T>& args, Stream stream) {
  if (args.rows == 0) return;
  const bool packs = fits_packs<T>(args.cols, {args.x, args.residual, args.gamma, args.sum, args.y}) &&
                     args.groups.stride % kPackElements<T> == 0;
  with_shape<T>(args.cols, packs, [&]<int N, int kThreads>() {
    forward<T, N, kThreads><<<blocks_for(args.rows, kBlock / kThreads), kBlock, 0, stream>>>(args);
  });
  check_launch("rms_norm_forward");
}

template <class T>
void rms_norm_squares(const RmsNormSquares<T>& args, Stream stream) {
  if (args.rows == 0) return;
  with_shape<T>(args.cols, fits_packs<T>(args.cols, {args.x, args.residual, args.sum}), [&]<int N, int kThreads>() {
    squares_rows<T, N, kThreads><<<blocks_for(args.rows, kBlock / kThreads), kBlock, 0, stream>>>(args);
  });
  check_launch("rms_norm_squares");
}

template <class T>
void rms_norm_dots(const RmsNormDots<T>& args, Stream stream) {
  if (args.rows == 0) return;
  with_shape<T>(args.cols, fits_packs<T>(args.cols, {args.dy, args.s, args.gamma}), [&]<int N, int kThreads>() {
    dots_rows<T, N, kThreads><<<blocks_for(args.rows, kBlock / kThreads), kBlock, 0, stream>>>(args);
  });
  check_launch("rms_norm_dots");
}

int64_t rms_norm_partial_rows(int64_t rows) {
  // Enough parts to occupy the device: four blocks of threads for each of an H100's 132
  // multiprocessors.
  return std::clamp<int64_t>(rows / 8, 1, 528);
}

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args, Wide<T>* partial, Stream stream) {
  if (args.rows == 0) return;
  const int64_t most = rms_norm_partial_rows(args.rows), rows_of_part = (args.rows + most - 1) / most;
  const unsigned parts = blocks_for(args.rows, rows_of_part);
  const auto add = [&] {
    add_parts<<<blocks_for(args.cols, kWarp), dim3(kWarp, 8), 0, stream>>>(partial, static_cast<int64_t>(parts),
                                                                           args.cols, args.dgamma);
    check_launch("rms_norm_backward");
  };
  const bool packs = fits_packs<T>(args.cols, {args.dy, args.s, args.gamma, args.dsum, args.dx}) &&
                     args.groups.stride % kPackElements<T> == 0;
  constexpr int64_t kColsInRegisters = 32 * kBlock;
  if (sizeof(T) < sizeof(double) && packs && args.cols > kColsOfWarp && args.cols <= kColsInRegisters) {
    constexpr int N = kPackElements<T>;
    const int64_t each = (args.cols + kBlock * N - 1) / (kBlock * N);  // packs of a thread
    const auto launch = [&]<int kPacks>() {
      backward_of_parts<T, N, kPacks><<<parts, kBlock, 0, stream>>>(args, rows_of_part, partial);
    };
    each <= 1   ? launch.template operator()<1>()
    : each <= 2 ? launch.template operator()<2>()
    : each <= 4 ? launch.template operator()<4>()
                : launch.template operator()<8>();
    return add();
  }
  // dx may alias dy, so the sums over rows come first.
  sum_parts<T><<<dim3(blocks_for(args.cols, 128), parts), 128, 0, stream>>>(args, rows_of_part, partial);
  add();
  with_shape<T>(args.cols, packs, [&]<int N, int kThreads>() {
    backward<T, N, kThreads><<<blocks_for(args.rows, kBlock / kThreads), kBlock, 0, stream>>>(args);
  });
  check_launch("rms_norm_backward");
}

template void rms_norm_forward(const RmsNormForward<float>&, Stream);
template void rms_norm_forward(const RmsNormForward<double>&, Stream);
template void rms_norm_forward(const RmsNormForward<Bf16>&, Stream);
template void rms_norm_squares(const RmsNormSquares<float>&, Stream);
template void rms_norm_squares(const RmsNormSquares<double>&, Stream);
template void rms_norm_squares(const RmsNormSquares<Bf16>&, Stream);
template void rms_norm_dots(const RmsNormDots<float>&, Stream);
template void rms_norm_dots(const RmsNormDots<double>&, Stream);
template void rms_norm_dots(const RmsNormDots<Bf16>&, Stream);
template void rms_norm_backward(const RmsNormBackward<float>&, float*, Stream);
template void rms_norm_backward(const RmsNormBackward<double>&, double*, Stream);
template void rms_norm_backward(const RmsNormBackward<Bf16>&, float*, Stream);

}  // namespace orthant::cuda_kernels

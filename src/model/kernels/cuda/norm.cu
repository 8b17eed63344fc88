// RMS norms: a row belongs to a warp if it is short, and to a block of threads otherwise.
#include "model/kernels/cuda/device-inl.cuh"
#include "model/kernels/cuda/kernels.h"

namespace orthant::cuda_kernels {
namespace {

constexpr int kBlock = 256;
constexpr int64_t kColsOfWarp = 1024;  // longest row of a warp

__device__ inline int64_t row_offset(const RowGroups& groups, int64_t row, int64_t cols) {
  return groups.rows == 0 ? row * cols : row / groups.rows * groups.stride + row % groups.rows * cols;
}

template <class T, int N, int kThreads>
__global__ void forward(RmsNormForward<T> args) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kBlock / kThreads) + threadIdx.x / kThreads;
  const bool in_range = row < args.rows;
  const int64_t offset = in_range ? row_offset(args.groups, row, args.cols) : 0;
  const T* s = args.residual != nullptr ? args.sum + offset : args.x + offset;
  const int64_t first = threadIdx.x % kThreads * N, step = kThreads * N, end = in_range ? args.cols : 0;
  Wide<T> squares = 0;
  for (int64_t i = first; i < end && args.squares == nullptr; i += step) {
    Wide<T> x[N];
    load(args.x + offset + i, x);
    if (args.residual != nullptr) {
      Wide<T> residual[N];
      load(args.residual + offset + i, residual);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = widen(narrow<T>(x[j] + residual[j]));
      store(x, args.sum + offset + i);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) squares += x[j] * x[j];
  }
  squares = sum_over_row<kThreads>(squares);
  if (!in_range) return;
  if (args.squares != nullptr) squares = args.squares[row];
  const double mean = static_cast<double>(squares) / static_cast<double>(args.squares != nullptr ? args.width : args.cols);
  const auto rstd = static_cast<Wide<T>>(1.0 / sqrt(mean + args.eps));
  if (first == 0) args.rstd[row] = rstd;
  for (int64_t i = first; i < end; i += step) {
    Wide<T> x[N], gamma[N];
    load(s + i, x);
    load(args.gamma + i, gamma);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = x[j] * rstd * gamma[j];
    store(x, args.y + offset + i);
  }
}

template <class T, int N, int kThreads>
__global__ void backward(RmsNormBackward<T> args) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kBlock / kThreads) + threadIdx.x / kThreads;
  const bool in_range = row < args.rows;
  const int64_t offset = in_range ? row_offset(args.groups, row, args.cols) : 0;
  const int64_t first = threadIdx.x % kThreads * N, step = kThreads * N, end = in_range ? args.cols : 0;
  Wide<T> dot = 0;
  for (int64_t i = first; i < end && args.dots == nullptr; i += step) {
    Wide<T> dy[N], s[N], gamma[N];
    load(args.dy + offset + i, dy);
    load(args.s + offset + i, s);
    load(args.gamma + i, gamma);
#pragma unroll
    for (int j = 0; j < N; ++j) dot += dy[j] * gamma[j] * s[j];
  }
  dot = sum_over_row<kThreads>(dot);
  if (!in_range) return;
  if (args.dots != nullptr) dot = args.dots[row];
  const Wide<T> rstd = args.rstd[row];
  const double r = static_cast<double>(rstd), width = static_cast<double>(args.dots != nullptr ? args.width : args.cols);
  const auto pull = static_cast<Wide<T>>(r * r * r * static_cast<double>(dot) / width);
  for (int64_t i = first; i < end; i += step) {
    Wide<T> dy[N], s[N], gamma[N], dsum[N] = {};
    load(args.dy + offset + i, dy);
    load(args.s + offset + i, s);
    load(args.gamma + i, gamma);
    if (args.dsum != nullptr) load(args.dsum + offset + i, dsum);
#pragma unroll
    for (int j = 0; j < N; ++j) dy[j] = dy[j] * rstd * gamma[j] - s[j] * pull + dsum[j];
    store(dy, args.dx + offset + i);
  }
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
    const int64_t at = row_offset(args.groups, row, args.cols) + col;
    sum += widen(args.dy[at]) * args.rstd[row] * widen(args.s[at]);
  }
  partial[blockIdx.y * args.cols + col] = sum;
}

template <class N>
__global__ void add_parts(const N* partial, int64_t parts, int64_t cols, N* out) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  N sum = out[col];
  for (int64_t part = 0; part < parts; ++part) sum += partial[part * cols + col];
  out[col] = sum;
}

// Calls launch.operator()<N, kThreads>() with the elements of a pack and the threads of a row that fit.
template <class T, class Launch>
void with_shape(int64_t cols, bool packs, const Launch& launch) {
  const bool is_short = cols <= kColsOfWarp;
  if (packs && is_short) return launch.template operator()<kPack<T>, kWarp>();
  if (packs) return launch.template operator()<kPack<T>, kBlock>();
  if (is_short) return launch.template operator()<1, kWarp>();
  launch.template operator()<1, kBlock>();
}

}  // namespace

template <class T>
void rms_norm_forward(const RmsNormForward<T>& args, Stream stream) {
  if (args.rows == 0) return;
  const bool packs = fits_packs<T>(args.cols, {args.x, args.residual, args.gamma, args.sum, args.y}) &&
                     args.groups.stride % kPack<T> == 0;
  with_shape<T>(args.cols, packs, [&]<int N, int kThreads>() {
    forward<T, N, kThreads><<<blocks_for(args.rows, kBlock / kThreads), kBlock, 0, stream>>>(args);
  });
  check_launch("rms_norm_forward");
}

int64_t rms_norm_partial_rows(int64_t rows) {
  // Enough parts to occupy the device, each of at least 32 rows.
  return std::clamp<int64_t>(rows / 32, 1, 256);
}

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args, Wide<T>* partial, Stream stream) {
  if (args.rows == 0) return;
  // dx may alias dy, so the sums over rows come first.
  const int64_t most = rms_norm_partial_rows(args.rows), rows_of_part = (args.rows + most - 1) / most;
  const unsigned parts = blocks_for(args.rows, rows_of_part), columns = blocks_for(args.cols, 128);
  sum_parts<T><<<dim3(columns, parts), 128, 0, stream>>>(args, rows_of_part, partial);
  add_parts<<<columns, 128, 0, stream>>>(partial, static_cast<int64_t>(parts), args.cols, args.dgamma);
  const bool packs = fits_packs<T>(args.cols, {args.dy, args.s, args.gamma, args.dsum, args.dx}) &&
                     args.groups.stride % kPack<T> == 0;
  with_shape<T>(args.cols, packs, [&]<int N, int kThreads>() {
    backward<T, N, kThreads><<<blocks_for(args.rows, kBlock / kThreads), kBlock, 0, stream>>>(args);
  });
  check_launch("rms_norm_backward");
}

template void rms_norm_forward(const RmsNormForward<float>&, Stream);
template void rms_norm_forward(const RmsNormForward<double>&, Stream);
template void rms_norm_forward(const RmsNormForward<Bf16>&, Stream);
template void rms_norm_backward(const RmsNormBackward<float>&, float*, Stream);
template void rms_norm_backward(const RmsNormBackward<double>&, double*, Stream);
template void rms_norm_backward(const RmsNormBackward<Bf16>&, float*, Stream);

}  // namespace orthant::cuda_kernels

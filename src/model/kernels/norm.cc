#include "model/kernels/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/norm.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/simd-inl.h"

#ifndef ORTHANT_NORM_ONCE
#define ORTHANT_NORM_ONCE
namespace orthant {

/// The backward pass in blocks of rows. Each block sums its part of dgamma into its own row of `partial`.
template <class T>
struct NormBlocks {
  RmsNormBackward<T> args;
  int64_t block_rows;
  int64_t blocks;
  Wide<T>* partial;  // [blocks, cols]
};

}  // namespace orthant
#endif

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// Returns the sum of squares of one row of s = x + residual and stores s to `sum`. Without residual, s is x and `sum`
/// is not written.
template <class T>
HWY_INLINE Wide<T> squares_of_row(const T* x, const T* residual, T* sum, int64_t cols) {
  if (residual) {
    return sum_vectors<T>(cols, [=](Vec<T> total, int64_t i, auto part) ORTHANT_BODY {
      const auto v = store(hn::Add(load(x + i, part), load(residual + i, part)), sum + i, part);
      return hn::MulAdd(v, v, total);
    });
  }
  return sum_vectors<T>(cols, [=](Vec<T> total, int64_t i, auto part) ORTHANT_BODY {
    const auto v = load(x + i, part);
    return hn::MulAdd(v, v, total);
  });
}

template <class T>
void norm_squares(const RmsNormSquares<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * args.cols;
    args.squares[row] = squares_of_row<T>(args.x + first, args.residual ? args.residual + first : nullptr,
                                          args.residual ? args.sum + first : nullptr, args.cols);
  }
}

template <class T>
void norm_forward(const RmsNormForward<T>& args, int64_t begin, int64_t end) {
  const int64_t cols = args.cols;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = args.x + args.groups.offset(row, cols);
    const T* s = args.residual ? args.sum + row * cols : x;
    const Wide<T> squares = args.squares
                                ? args.squares[row]
                                : squares_of_row<T>(x, args.residual ? args.residual + row * cols : nullptr,
                                                    args.residual ? args.sum + row * cols : nullptr, cols);
    const double mean = static_cast<double>(squares) / static_cast<double>(args.squares ? args.width : cols);
    const auto rstd = static_cast<Wide<T>>(1.0 / __builtin_sqrt(mean + args.eps));
    args.rstd[row] = rstd;
    const auto scale = splat<T>(rstd);
    const T* gamma = args.gamma;
    T* y = args.y + args.groups.offset(row, cols);
    for_vectors<T>(cols, [=](int64_t i, auto part) ORTHANT_BODY {
      store(hn::Mul(hn::Mul(load(s + i, part), scale), load(gamma + i, part)), y + i, part);
    });
  }
}

/// The sum of dy * gamma * s of one row.
template <class T>
HWY_INLINE Wide<T> dot_of_row(const T* dy, const T* s, const T* gamma, int64_t cols) {
  return sum_vectors<T>(cols, [=](Vec<T> total, int64_t i, auto part) ORTHANT_BODY {
    return hn::MulAdd(hn::Mul(load(dy + i, part), load(gamma + i, part)), load(s + i, part), total);
  });
}

template <class T>
void norm_dots(const RmsNormDots<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    args.dots[row] = dot_of_row<T>(args.dy + row * args.cols, args.s + row * args.cols, args.gamma, args.cols);
  }
}

/// Computes dx of one row and adds the row's part of dgamma to `partial`.
template <class T>
HWY_INLINE void norm_backward_row(const RmsNormBackward<T>& args, int64_t row, Wide<T>* partial) {
  const int64_t cols = args.cols;
  const int64_t first = args.groups.offset(row, cols);
  const T* dy = args.dy + first;
  const T* s = args.s + first;
  const T* dsum = args.dsum ? args.dsum + first : nullptr;
  const T* gamma = args.gamma;
  T* dx = args.dx + first;
  const Wide<T> dot = args.dots ? args.dots[row] : dot_of_row<T>(dy, s, gamma, cols);
  const double r = static_cast<double>(args.rstd[row]);
  const auto rstd = splat<T>(r);
  const auto pull = splat<T>(r * r * r * static_cast<double>(dot) / static_cast<double>(args.dots ? args.width : cols));
  const auto body = [=](int64_t i, auto part, auto has_dsum) ORTHANT_BODY {
    const auto scaled = hn::Mul(load(dy + i, part), rstd);
    const auto value = load(s + i, part);
    auto gradient = hn::NegMulAdd(value, pull, hn::Mul(scaled, load(gamma + i, part)));
    if constexpr (has_dsum.value) gradient = hn::Add(gradient, load(dsum + i, part));
    store(hn::MulAdd(scaled, value, load(partial + i, part)), partial + i, part);
    store(gradient, dx + i, part);
  };
  if (dsum) {
    for_vectors<T>(cols, [=](int64_t i, auto part) ORTHANT_BODY { body(i, part, std::true_type()); });
  } else {
    for_vectors<T>(cols, [=](int64_t i, auto part) ORTHANT_BODY { body(i, part, std::false_type()); });
  }
}

template <class T>
void norm_backward(const NormBlocks<T>& blocks, int64_t begin, int64_t end) {
  for (int64_t block = begin; block < end; ++block) {
    Wide<T>* partial = blocks.partial + block * blocks.args.cols;
    const int64_t first = block * blocks.block_rows;
    const int64_t last = HWY_MIN(first + blocks.block_rows, blocks.args.rows);
    for (int64_t row = first; row < last; ++row) norm_backward_row<T>(blocks.args, row, partial);
  }
}

/// Adds the partial sums of the columns [begin, end) to dgamma, in the order of blocks.
template <class T>
void norm_backward_gamma(const NormBlocks<T>& blocks, int64_t begin, int64_t end) {
  const int64_t cols = blocks.args.cols;
  Wide<T>* dgamma = blocks.args.dgamma + begin;
  for (int64_t block = 0; block < blocks.blocks; ++block) {
    const Wide<T>* partial = blocks.partial + block * cols + begin;
    for_vectors<Wide<T>>(end - begin, [=](int64_t i, auto part) ORTHANT_BODY {
      store(hn::Add(load(dgamma + i, part), load(partial + i, part)), dgamma + i, part);
    });
  }
}

#define ORTHANT_NORM_KERNELS(T, tag)                      \
  ORTHANT_KERNEL(norm_squares, RmsNormSquares, T, tag)    \
  ORTHANT_KERNEL(norm_forward, RmsNormForward, T, tag)    \
  ORTHANT_KERNEL(norm_dots, RmsNormDots, T, tag)          \
  ORTHANT_KERNEL(norm_backward, NormBlocks, T, tag)       \
  ORTHANT_KERNEL(norm_backward_gamma, NormBlocks, T, tag)
ORTHANT_NORM_KERNELS(float, f32)
ORTHANT_NORM_KERNELS(Bf16, bf16)
ORTHANT_NORM_KERNELS(double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

#include "base/errors.h"
#include "model/kernels/parallel.h"

namespace orthant {

#define ORTHANT_NORM_DISPATCH(T, tag)                       \
  ORTHANT_DISPATCH(norm_squares, RmsNormSquares, T, tag)    \
  ORTHANT_DISPATCH(norm_forward, RmsNormForward, T, tag)    \
  ORTHANT_DISPATCH(norm_dots, RmsNormDots, T, tag)          \
  ORTHANT_DISPATCH(norm_backward, NormBlocks, T, tag)       \
  ORTHANT_DISPATCH(norm_backward_gamma, NormBlocks, T, tag)
ORTHANT_NORM_DISPATCH(float, f32)
ORTHANT_NORM_DISPATCH(Bf16, bf16)
ORTHANT_NORM_DISPATCH(double, f64)

template <class T>
void rms_norm_squares(const RmsNormSquares<T>& args) {
  ORTHANT_CHECK(!args.residual || args.sum, args.rows, args.cols);
  parallel_rows(args.rows, args.cols, [&](int64_t begin, int64_t end) { norm_squares(args, begin, end); });
}

template <class T>
void rms_norm_dots(const RmsNormDots<T>& args) {
  parallel_rows(args.rows, args.cols, [&](int64_t begin, int64_t end) { norm_dots(args, begin, end); });
}

template <class T>
void rms_norm_forward(const RmsNormForward<T>& args) {
  ORTHANT_CHECK(!args.residual || (args.sum && !args.squares), args.rows, args.cols);
  parallel_rows(args.rows, args.cols, [&](int64_t begin, int64_t end) { norm_forward(args, begin, end); });
}

template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args) {
  // Blocks have at least 32 rows, so that partial sums cost little memory traffic. There are at most 64 blocks, so that
  // the partial sums stay small.
  const int64_t block_rows = std::max<int64_t>(32, (args.rows + 63) / 64);
  const int64_t blocks = (args.rows + block_rows - 1) / block_rows;
  std::vector<Wide<T>> partial(static_cast<size_t>(blocks * args.cols));
  const NormBlocks<T> work{args, block_rows, blocks, partial.data()};
  parallel_rows(blocks, block_rows * args.cols,
                [&](int64_t begin, int64_t end) { norm_backward(work, begin, end); });
  norm_backward_gamma(work, 0, args.cols);
}

template void rms_norm_squares(const RmsNormSquares<float>&);
template void rms_norm_squares(const RmsNormSquares<Bf16>&);
template void rms_norm_squares(const RmsNormSquares<double>&);
template void rms_norm_dots(const RmsNormDots<float>&);
template void rms_norm_dots(const RmsNormDots<Bf16>&);
template void rms_norm_dots(const RmsNormDots<double>&);
template void rms_norm_forward(const RmsNormForward<float>&);
template void rms_norm_forward(const RmsNormForward<Bf16>&);
template void rms_norm_forward(const RmsNormForward<double>&);
template void rms_norm_backward(const RmsNormBackward<float>&);
template void rms_norm_backward(const RmsNormBackward<Bf16>&);
template void rms_norm_backward(const RmsNormBackward<double>&);

}  // namespace orthant
#endif  // HWY_ONCE

// RMS normalization in one pass over memory, fused with the preceding residual addition, and its gradient. Rows may be
// sharded by columns: then the caller all-reduces one statistic per row between two calls.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// Rows in groups, for matrices that are part of a wider one: a group has `rows` adjacent rows, and the first elements
/// of two groups are `stride` elements apart. With rows = 0, all rows are adjacent.
struct RowGroups {
  int64_t rows = 0, stride = 0;

  /// Offset of a row's first element.
  constexpr int64_t offset(int64_t row, int64_t cols) const {
    return rows == 0 ? row * cols : row / rows * stride + row % rows * cols;
  }
};

/// All matrices are [rows, cols], row-major and dense; gamma is [cols], rstd is [rows].
template <class T>
struct RmsNormForward {
  const T* x;
  const T* residual = nullptr;  // optional; requires `sum`
  const T* gamma;
  double eps;
  int64_t rows;
  int64_t cols;
  T* sum = nullptr;  // out: s = x + residual, rounded to T; may alias x or residual
  T* y;              // out
  Wide<T>* rstd;     // out: 1 / sqrt(mean(s^2) + eps), needed by the backward pass
  /// For sharded columns: the unsharded width, and the sum of squares of each unsharded row (RmsNormSquares summed over
  /// the shards). Then s is x.
  int64_t width = 0;
  const Wide<T>* squares = nullptr;
  RowGroups groups = {};  // of x and y; requires no residual and no sharded columns
};

/// Computes s = x + residual (s = x without residual) and y = s * rstd * gamma. The statistics are taken from s as
/// stored, so that the backward pass sees the same values. T is float, Bf16 or double.
template <class T>
void rms_norm_forward(const RmsNormForward<T>& args);

/// For sharded columns: computes s = x + residual and the sum of squares of each row of the shard.
template <class T>
struct RmsNormSquares {
  const T* x;
  const T* residual = nullptr;  // optional; requires `sum`
  int64_t rows;
  int64_t cols;
  T* sum = nullptr;   // out
  Wide<T>* squares;   // out, [rows]
};
template <class T>
void rms_norm_squares(const RmsNormSquares<T>& args);

/// `s` is the input of the norm: `sum` of the forward pass, or x if there was no residual.
template <class T>
struct RmsNormBackward {
  const T* dy;
  const T* s;
  const T* gamma;
  const Wide<T>* rstd;
  const T* dsum = nullptr;  // optional: the gradient of s from the residual branch
  int64_t rows;
  int64_t cols;
  T* dx;            // out: gradient of s; may alias dy or dsum
  Wide<T>* dgamma;  // [cols]; accumulated
  /// For sharded columns: the unsharded width, and RmsNormDots summed over the shards.
  int64_t width = 0;
  const Wide<T>* dots = nullptr;
  RowGroups groups = {};  // of dy, s and dx; requires no dsum and no sharded columns
};

/// For sharded columns: the sum of dy * gamma * s over each row of the shard.
template <class T>
struct RmsNormDots {
  const T* dy;
  const T* s;
  const T* gamma;
  int64_t rows;
  int64_t cols;
  Wide<T>* dots;  // out, [rows]
};
template <class T>
void rms_norm_dots(const RmsNormDots<T>& args);

/// dx = dsum + rstd * (g - s * rstd^2 * mean(g * s)) with g = dy * gamma; dgamma += the sum over rows of dy * s * rstd.
/// That sum runs over fixed blocks of rows in order, so its bits do not depend on the number of threads. T is float,
/// Bf16 or double.
template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args);

}  // namespace orthant

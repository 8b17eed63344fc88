// RMS normalization in one pass over memory, together with the residual addition before it, and its gradient.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// All matrices are [rows, cols], row-major and dense; gamma is [cols], rstd is [rows].
template <class T>
struct RmsNormForward {
  const T* x;
  const T* residual = nullptr;  // optional; then `sum` is required
  const T* gamma;
  double eps;
  int64_t rows;
  int64_t cols;
  T* sum = nullptr;  // out: s = x + residual, rounded to T; may be x or residual itself
  T* y;              // out
  Wide<T>* rstd;     // out: 1 / sqrt(mean(s^2) + eps), needed by the backward pass
  /// Where the columns are a part of a wider row: its width, and the sum of squares of each whole row (RmsNormSquares
  /// of all parts added up); then s is x.
  int64_t width = 0;
  const Wide<T>* squares = nullptr;
};

/// s = x + residual (s = x without one); y = s * rstd * gamma. The statistics are taken from s as stored, so that the
/// backward pass sees the same values. T is float, Bf16 or double.
template <class T>
void rms_norm_forward(const RmsNormForward<T>& args);

/// Of a part of wider rows: s = x + residual, and its sum of squares, row by row.
template <class T>
struct RmsNormSquares {
  const T* x;
  const T* residual = nullptr;  // optional; then `sum` is required
  int64_t rows;
  int64_t cols;
  T* sum = nullptr;   // out
  Wide<T>* squares;   // out, [rows]
};
template <class T>
void rms_norm_squares(const RmsNormSquares<T>& args);

/// `s` is the input of the norm: `sum` of the forward pass, or x where there was no residual.
template <class T>
struct RmsNormBackward {
  const T* dy;
  const T* s;
  const T* gamma;
  const Wide<T>* rstd;
  const T* dsum = nullptr;  // optional: the gradient that reaches s on the residual branch
  int64_t rows;
  int64_t cols;
  T* dx;            // out: gradient with respect to s; may be dy or dsum itself
  Wide<T>* dgamma;  // [cols], added into
  /// Where the columns are a part of a wider row: its width, and RmsNormDots of all parts added up.
  int64_t width = 0;
  const Wide<T>* dots = nullptr;
};

/// Of a part of wider rows: the sum of dy * gamma * s, row by row.
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

/// dx = dsum + rstd * (g - s * rstd^2 * mean(g * s)) with g = dy * gamma; dgamma += sum over rows of dy * s * rstd,
/// summed over fixed blocks of rows in order: the bits do not depend on the number of threads. T is float, Bf16 or
/// double.
template <class T>
void rms_norm_backward(const RmsNormBackward<T>& args);

}  // namespace orthant

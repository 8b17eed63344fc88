// The parallel loop of all kernels: equal ranges of rows on the threads that OpenMP allows. The result for a row must
// not depend on the ranges. Every kernel here obeys that law, so the number of threads changes no bits.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace orthant {

/// Work of fewer elements runs on the calling thread, because waking threads would cost more.
inline constexpr int64_t kSerialElements = 32768;

/// Calls fn(begin, end) on disjoint ranges that cover [0, rows). One row costs about as much as `cols` elements.
template <class Fn>
void parallel_rows(int64_t rows, int64_t cols, const Fn& fn) {
  if (rows <= 0) return;
  const bool serial = rows * cols < kSerialElements || omp_in_parallel();
  const int64_t parts = serial ? 1 : std::min<int64_t>(omp_get_max_threads(), rows);
  if (parts <= 1) return fn(int64_t{0}, rows);
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static)
  for (int64_t part = 0; part < parts; ++part) fn(rows * part / parts, rows * (part + 1) / parts);
}

/// As parallel_rows(), over single elements. Ranges begin at multiples of 1024 elements, so that two threads share no
/// cache line.
template <class Fn>
void parallel_elements(int64_t count, const Fn& fn) {
  constexpr int64_t kGrain = 1024;
  parallel_rows((count + kGrain - 1) / kGrain, kGrain, [&](int64_t begin, int64_t end) {
    fn(begin * kGrain, std::min(end * kGrain, count));
  });
}

}  // namespace orthant

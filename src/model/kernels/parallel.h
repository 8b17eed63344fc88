// The one parallel loop of the kernels: equal ranges of rows on the threads that OpenMP's setting allows. What a range
// computes must not depend on where it is cut; every kernel here keeps to that, so thread counts change no bits.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace orthant {

/// Work below this many elements is not worth waking threads for.
inline constexpr int64_t kSerialElements = 32768;

/// Calls fn(begin, end) on disjoint ranges that cover [0, rows); one row costs about `cols` elements of work.
template <class Fn>
void parallel_rows(int64_t rows, int64_t cols, const Fn& fn) {
  if (rows <= 0) return;
  const bool serial = rows * cols < kSerialElements || omp_in_parallel();
  const int64_t parts = serial ? 1 : std::min<int64_t>(omp_get_max_threads(), rows);
  if (parts <= 1) return fn(int64_t{0}, rows);
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static)
  for (int64_t part = 0; part < parts; ++part) fn(rows * part / parts, rows * (part + 1) / parts);
}

/// The same over single elements, cut at multiples of 1024 of them, so that two threads share no cache line.
template <class Fn>
void parallel_elements(int64_t count, const Fn& fn) {
  constexpr int64_t kGrain = 1024;
  parallel_rows((count + kGrain - 1) / kGrain, kGrain, [&](int64_t begin, int64_t end) {
    fn(begin * kGrain, std::min(end * kGrain, count));
  });
}

}  // namespace orthant

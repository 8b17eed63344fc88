// Helpers of the kernel tests: random values, rounding units, comparison with bounds, and runs over all SIMD targets
// and several thread counts.
#pragma once

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "hwy/highway.h"
#include "model/kernels/element.h"

namespace orthant {

inline double to_double(float value) { return value; }
inline double to_double(double value) { return value; }
inline double to_double(Bf16 value) { return to_float(value); }

template <class T>
T round_to(double value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return to_bf16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// The relative rounding unit (half an ulp): store_unit() of T as stored, unit() of the arithmetic that kernels of T
/// use, which is float for bfloat16.
template <class T>
constexpr double store_unit() {
  return std::is_same_v<T, double> ? 0x1p-53 : std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8;
}
template <class T>
constexpr double unit() {
  return std::is_same_v<T, double> ? 0x1p-53 : 0x1p-24;
}

template <class T>
std::vector<T> random_values(int64_t count, uint64_t seed, double scale = 1.0) {
  std::mt19937_64 generator(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) value = round_to<T>(scale * (static_cast<double>(generator() >> 11) * 0x1p-52 - 1.0));
  return values;
}

/// The number of elements outside expected +- bound (a NaN is outside), and a description of the first.
struct Deviation {
  int64_t count = 0;
  std::string first;
};

template <class T>
Deviation compare(const std::vector<T>& actual, const std::vector<double>& expected, const std::vector<double>& bound) {
  Deviation deviation;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(to_double(actual.at(i)) - expected[i]);
    if (error <= bound.at(i)) continue;
    if (deviation.count++ == 0) {
      deviation.first = "element " + std::to_string(i) + ": " + std::to_string(to_double(actual[i])) + ", expected " +
                        std::to_string(expected[i]) + ", error over bound " + std::to_string(error / bound[i]);
    }
  }
  return deviation;
}

#define EXPECT_WITHIN(actual, expected, bound)                                  \
  do {                                                                          \
    const Deviation found = compare(actual, expected, bound);                   \
    EXPECT_EQ(found.count, 0) << #actual << ": " << found.first;                \
  } while (false)
#define EXPECT_NOT_WITHIN(actual, expected, bound) EXPECT_GT(compare(actual, expected, bound).count, 0) << #actual

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Runs fn() once on each SIMD target that was compiled and that this processor supports.
template <class Fn>
void for_each_target(const Fn& fn) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    SCOPED_TRACE(hwy::TargetName(target));
    fn();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

/// Expects fn(), which returns a vector, to give the same bits on all targets with fused multiply-add: the result must
/// not depend on the number of SIMD lanes.
template <class Fn>
void expect_same_for_any_width(const Fn& fn) {
  std::vector<decltype(fn())> results;
  for_each_target([&] {
    if (hwy::SupportedTargets() <= HWY_AVX2) results.push_back(fn());
  });
  for (const auto& result : results) EXPECT_TRUE(same_bits(result, results.front()));
}

/// Runs fn() with `threads` OpenMP threads.
template <class Fn>
auto with_threads(int threads, const Fn& fn) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  auto result = fn();
  omp_set_num_threads(before);
  return result;
}

/// Expects fn(), which returns a vector, to give the same bits with 1, 2 and 3 threads.
template <class Fn>
void expect_same_for_any_threads(const Fn& fn) {
  const auto one = with_threads(1, fn);
  EXPECT_TRUE(same_bits(one, with_threads(2, fn)));
  EXPECT_TRUE(same_bits(one, with_threads(3, fn)));
}

using AllElements = ::testing::Types<float, Bf16, double>;
using WideElements = ::testing::Types<float, double>;

}  // namespace orthant

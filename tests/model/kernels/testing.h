// What the kernel tests share: values, rounding units, bounds, and runs over every SIMD target and thread count.
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

/// Half an ulp relative to the value: of T as stored, and of the arithmetic that T is computed in.
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

/// How many elements lie outside expected +- bound (a NaN does), and the first of them in words.
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

/// Runs fn(name) once on each SIMD target that was compiled and that this processor has.
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

/// Expects fn(), which returns a vector, to give the same bits on all targets that have fused multiply-add: lanes are
/// computed alike, however many there are.
template <class Fn>
void expect_same_for_any_width(const Fn& fn) {
  std::vector<decltype(fn())> results;
  for_each_target([&] {
    if (hwy::SupportedTargets() <= HWY_AVX2) results.push_back(fn());
  });
  for (const auto& result : results) EXPECT_TRUE(same_bits(result, results.front()));
}

/// Runs fn() with this many OpenMP threads.
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

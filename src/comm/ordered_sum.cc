// Sums in a fixed order, in blocks that fit the cache; vectorized for float, double and bfloat16.
#include "comm/ordered_sum.h"

#include <ATen/OpMathType.h>

#include <algorithm>
#include <array>
#include <bit>

#include "base/errors.h"

namespace orthant {
namespace {

constexpr int64_t kBlock = 1024;  // elements; their sum stays in the first-level cache

// The hot loops are compiled once per processor generation; other dtypes are rare. They are plain additions, so no
// instruction set changes a bit.
#ifdef __x86_64__
#define FOR_EACH_PROCESSOR [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]
#else
#define FOR_EACH_PROCESSOR
#endif

// `to` may be `x` or `y`: each element is read before it is written.
FOR_EACH_PROCESSOR void add(float* to, const float* x, const float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] + y[i];
}
FOR_EACH_PROCESSOR void add(double* to, const double* x, const double* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) to[i] = x[i] + y[i];
}
FOR_EACH_PROCESSOR void add_bf16(float* sum, const uint16_t* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sum[i] += std::bit_cast<float>(static_cast<uint32_t>(x[i]) << 16);
}

template <typename Sum, typename T>
void add_any(Sum* sum, const T* x, int64_t n) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
    add_bf16(sum, reinterpret_cast<const uint16_t*>(x), n);
  } else if constexpr (std::is_same_v<T, bool>) {
    for (int64_t i = 0; i < n; ++i) sum[i] = sum[i] || x[i];
  } else {
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<Sum>(sum[i] + static_cast<Sum>(x[i]));
  }
}

// Works block by block, because the output may be any of the sources.
template <typename T>
void sum_all(std::byte* output, std::span<const std::byte* const> sources, int64_t count) {
  using Sum = at::opmath_type<T>;
  std::array<Sum, kBlock> sum;
  const auto at = [](const std::byte* memory, int64_t i) { return reinterpret_cast<const T*>(memory) + i; };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    T* const out = reinterpret_cast<T*>(output) + begin;
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
      const T* so_far = at(sources[0], begin);
      for (size_t i = 1; i < sources.size(); ++i) {
        T* const to = i + 1 == sources.size() ? out : sum.data();
        add(to, so_far, at(sources[i], begin), n);
        so_far = to;
      }
      if (so_far != out) std::copy_n(so_far, n, out);  // there is only one source
    } else {
      std::copy_n(at(sources[0], begin), n, sum.begin());
      for (const std::byte* source : sources.subspan(1)) add_any(sum.data(), at(source, begin), n);
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sum[static_cast<size_t>(i)]);
    }
  }
}

// output[i] = the largest of the sources' elements, for i from `begin` to `end` - 1.
void take_largest(std::byte* output, std::span<const std::byte* const> sources, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const auto element = [&](const std::byte* memory) { return reinterpret_cast<const double*>(memory)[i]; };
    double largest = element(sources[0]);
    for (const std::byte* source : sources.subspan(1)) largest = std::max(largest, element(source));
    reinterpret_cast<double*>(output)[i] = largest;
  }
}

using Sum = void (*)(std::byte* output, std::span<const std::byte* const> sources, int64_t count);

// The function that sums this dtype; null if the dtype has no sum.
Sum sum_of(at::ScalarType type) {
  switch (type) {
    case at::kBool: return sum_all<bool>;
    case at::kByte: return sum_all<uint8_t>;
    case at::kChar: return sum_all<int8_t>;
    case at::kShort: return sum_all<int16_t>;
    case at::kInt: return sum_all<int32_t>;
    case at::kLong: return sum_all<int64_t>;
    case at::kHalf: return sum_all<at::Half>;
    case at::kBFloat16: return sum_all<at::BFloat16>;
    case at::kFloat: return sum_all<float>;
    case at::kDouble: return sum_all<double>;
    case at::kComplexHalf: return sum_all<c10::complex<at::Half>>;
    case at::kComplexFloat: return sum_all<c10::complex<float>>;
    case at::kComplexDouble: return sum_all<c10::complex<double>>;
    default: return nullptr;
  }
}

}  // namespace

bool has_sum(at::ScalarType type) { return sum_of(type) != nullptr; }

void ordered_sum(std::byte* output, std::span<const std::byte* const> sources, int64_t count, at::ScalarType type,
                 int64_t maxima) {
  const Sum sum = sum_of(type);
  ORTHANT_CHECK(sum != nullptr, c10::toString(type));
  ORTHANT_CHECK(maxima == 0 || (type == at::kDouble && maxima <= count), c10::toString(type), maxima, count);
  sum(output, sources, count - maxima);
  take_largest(output, sources, count - maxima, count);
}

}  // namespace orthant

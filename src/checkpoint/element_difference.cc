// Converts elements to float64, one pair at a time, and takes the largest difference.
#include "checkpoint/element_difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.h"

namespace orthant {
namespace {

// The value of a float16 number: 1 bit of sign, 5 of exponent, 10 of fraction.
double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double magnitude = std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(fraction, -24);
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}

// A bfloat16 number is the upper half of a float32 number.
double bfloat16_value(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

double difference(double a, double b) {
  if (std::isnan(a) && std::isnan(b)) return 0;
  const double distance = std::abs(a - b);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

// Compares numbers that are stored as `Bits`.
template <typename Bits, typename Value>
ElementDifference compare_numbers(std::span<const std::byte> a, std::span<const std::byte> b, Value value) {
  ElementDifference result{.num_elements = static_cast<int64_t>(a.size() / sizeof(Bits)), .largest = 0};
  for (std::size_t at = 0; at < a.size(); at += sizeof(Bits)) {
    Bits x, y;
    std::memcpy(&x, a.data() + at, sizeof(Bits));
    std::memcpy(&y, b.data() + at, sizeof(Bits));
    if (x == y) continue;
    ++result.num_different;
    result.largest = std::max(*result.largest, difference(value(x), value(y)));
  }
  return result;
}

ElementDifference compare_bytes(std::size_t size, std::span<const std::byte> a, std::span<const std::byte> b) {
  ElementDifference result{.num_elements = static_cast<int64_t>(a.size() / size), .largest = {}};
  for (std::size_t at = 0; at < a.size(); at += size) {
    if (std::memcmp(a.data() + at, b.data() + at, size) != 0) ++result.num_different;
  }
  return result;
}

}  // namespace

ElementDifference compare_elements(Dtype dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::size_t size = static_cast<std::size_t>(std::max(8, dtype_bits(dtype))) / 8;
  ORTHANT_CHECK(a.size() == b.size() && a.size() % size == 0, a.size(), b.size(), size);
  switch (dtype) {
    case Dtype::f64:
      return compare_numbers<uint64_t>(a, b, [](uint64_t bits) { return std::bit_cast<double>(bits); });
    case Dtype::f32:
      return compare_numbers<uint32_t>(a, b, [](uint32_t bits) { return double{std::bit_cast<float>(bits)}; });
    case Dtype::bf16:
      return compare_numbers<uint16_t>(a, b, bfloat16_value);
    case Dtype::f16:
      return compare_numbers<uint16_t>(a, b, half_value);
    default:
      return compare_bytes(size, a, b);
  }
}

}  // namespace orthant

#include "model/kernels/convert.h"

#include <limits>

#include "tests/model/kernels/testing.h"

namespace orthant {
namespace {

/// The nearest bf16 by search: of the two neighbors that enclose the value the closer one, and of equals the even one.
uint16_t nearest(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t lower = static_cast<uint16_t>(bits >> 16), upper = static_cast<uint16_t>(lower + 1);
  if ((bits & 0xFFFFu) == 0 || std::isinf(value)) return lower;
  // The successor of the largest finite number stands for 2^128 here, as rounding to nearest wants it.
  const auto magnitude = [](uint16_t b) {
    const uint16_t unsigned_bits = b & 0x7FFF;
    return unsigned_bits == 0x7F80 ? 0x1p128 : double{to_float(Bf16{unsigned_bits})};
  };
  const double size = std::abs(double{value});
  const double to_lower = size - magnitude(lower), to_upper = magnitude(upper) - size;
  if (to_lower != to_upper) return to_lower < to_upper ? lower : upper;
  return lower % 2 == 0 ? lower : upper;
}

/// Every exponent and sign with mantissas around the ties, and random ones.
std::vector<float> hard_floats() {
  std::vector<float> values;
  std::mt19937 generator(1);
  for (uint32_t upper = 0; upper < 0x10000; upper += 3) {
    const uint32_t any = static_cast<uint32_t>(generator()) & 0xFFFFu;
    for (const uint32_t lower : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu, any}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  return values;
}

TEST(Cast, RoundsToNearestEvenOnEveryTarget) {
  const auto values = hard_floats();
  const int64_t count = static_cast<int64_t>(values.size());
  for_each_target([&] {
    std::vector<Bf16> rounded(values.size());
    cast(values.data(), rounded.data(), count);
    int64_t wrong = 0, truncated = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
      const uint16_t scalar = to_bf16(values[i]).bits;
      if (std::isnan(values[i])) {
        wrong += !std::isnan(to_float(rounded[i])) || scalar != rounded[i].bits;
      } else {
        wrong += rounded[i].bits != nearest(values[i]) || scalar != nearest(values[i]);
        truncated += rounded[i].bits != bits >> 16;
      }
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(truncated, count / 4);  // cutting the lower half off would be seen
  });
}

TEST(Cast, EveryBf16ComesBack) {
  std::vector<Bf16> all;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) all.push_back(Bf16{static_cast<uint16_t>(bits)});
  for_each_target([&] {
    std::vector<float> wide(all.size());
    std::vector<Bf16> back(all.size());
    cast(all.data(), wide.data(), 0x10000);
    cast(wide.data(), back.data(), 0x10000);
    int64_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const bool nan = std::isnan(wide[i]);
      wrong += nan ? (back[i].bits | 0x40) != (all[i].bits | 0x40) : back[i].bits != all[i].bits;
      wrong += std::bit_cast<uint32_t>(wide[i]) != i << 16;
    }
    EXPECT_EQ(wrong, 0);
  });
}

TEST(Add, AddsAndLeavesTheRest) {
  for_each_target([] {
    for (const int64_t count : {0, 1, 15, 16, 100, 40000}) {
      const auto src = random_values<Bf16>(count + 1, 1);
      auto dst = random_values<float>(count + 1, 2);
      auto expected = dst;
      for (int64_t i = 0; i < count; ++i) expected[i] += to_float(src[i]);
      add_bf16_into_f32(dst.data(), src.data(), count);
      EXPECT_TRUE(same_bits(dst, expected));  // the element behind the last included
    }
  });
}

template <class T>
class Scale : public ::testing::Test {};
TYPED_TEST_SUITE(Scale, AllElements);

TYPED_TEST(Scale, MultipliesAndThreadsChangeNoBits) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t count : {0, 1, 17, 100, 40000}) {
      auto x = random_values<T>(count + 1, 1);
      auto expected = x;
      const Wide<T> factor = static_cast<Wide<T>>(1.0 / 3.0);
      for (int64_t i = 0; i < count; ++i) {
        expected[i] = round_to<T>(static_cast<Wide<T>>(static_cast<Wide<T>>(to_double(x[i])) * factor));
      }
      scale(x.data(), count, 1.0 / 3.0);
      EXPECT_TRUE(same_bits(x, expected));
    }
  });
  expect_same_for_any_threads([] {
    auto x = random_values<T>(100001, 1);
    scale(x.data(), 100001, 0.3);
    return x;
  });
}

}  // namespace
}  // namespace orthant

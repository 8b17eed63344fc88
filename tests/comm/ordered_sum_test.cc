// ordered_sum() compared with a plain loop over elements, bit for bit: every dtype, sizes around its block length, in
// place and not.
#include "comm/ordered_sum.h"

#include <cstring>

#include "base/errors.h"
#include "tests/comm/line.h"

namespace orthant::ordered_sum_test {
namespace {

// The type in which a sum is accumulated: float for float types narrower than float32, T itself otherwise.
template <typename T>
struct WideOf { using Type = T; };
template <>
struct WideOf<at::Half> { using Type = float; };
template <>
struct WideOf<at::BFloat16> { using Type = float; };
template <>
struct WideOf<c10::complex<at::Half>> { using Type = c10::complex<float>; };
template <typename T>
using Wide = typename WideOf<T>::Type;

// Magnitudes for which another order, or rounding in between, would lose the small summands.
template <typename T>
std::vector<T> summand(int place, int64_t count) {
  constexpr double kMagnitudes[] = {512, 1.0 / 512, -512};
  std::vector<T> values;
  for (int64_t i = 0; i < count; ++i) {
    const double third = static_cast<double>(i % 7) + (place / 3 + 1) / 3.0;
    if constexpr (std::is_same_v<T, bool>) {
      values.push_back((i + place) % 3 == 0);
    } else if constexpr (std::is_integral_v<T>) {
      values.push_back(static_cast<T>(i * 31 + place * 7));  // overflows and wraps around
    } else if constexpr (c10::is_complex<T>::value) {
      using Part = decltype(T().real());
      values.emplace_back(static_cast<Part>(third * kMagnitudes[place % 3]), static_cast<Part>(i + place));
    } else {
      values.push_back(static_cast<T>(third * kMagnitudes[place % 3]));
    }
  }
  return values;
}

template <typename T>
T plain_sum(const std::vector<std::vector<T>>& summands, size_t i) {
  Wide<T> sum = summands[0][i];
  for (size_t s = 1; s < summands.size(); ++s) {
    if constexpr (std::is_same_v<T, bool>) {
      sum = sum || summands[s][i];
    } else {
      sum = static_cast<Wide<T>>(sum + static_cast<Wide<T>>(summands[s][i]));
    }
  }
  return static_cast<T>(sum);
}

// `own` is the index of the summand that the output overwrites; -1 for none.
template <typename T>
void expect_plain(int positions, int64_t count, int own) {
  // Plain arrays, because a vector<bool> stores no addressable elements.
  std::vector<std::unique_ptr<T[]>> memory;
  std::vector<std::vector<T>> summands;
  std::vector<const std::byte*> sources;
  for (int place = 0; place < positions; ++place) {
    summands.push_back(summand<T>(place, count));
    memory.push_back(std::make_unique<T[]>(static_cast<size_t>(count)));
    std::copy(summands.back().begin(), summands.back().end(), memory.back().get());
    sources.push_back(reinterpret_cast<const std::byte*>(memory.back().get()));
  }
  memory.push_back(std::make_unique<T[]>(static_cast<size_t>(count)));
  T* const output = (own < 0 ? memory.back() : memory[static_cast<size_t>(own)]).get();
  ordered_sum(reinterpret_cast<std::byte*>(output), sources, count, c10::CppTypeToScalarType<T>::value);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const T expected = plain_sum(summands, i);
    ASSERT_EQ(std::memcmp(&output[i], &expected, sizeof(T)), 0)
        << c10::toString(c10::CppTypeToScalarType<T>::value) << ", element " << i << " of " << count << ", "
        << positions << " summands, own " << own;
  }
}

template <typename T>
class OrderedSum : public testing::Test {};
using Types = testing::Types<bool, uint8_t, int8_t, int16_t, int32_t, int64_t, at::Half, at::BFloat16, float, double,
                             c10::complex<at::Half>, c10::complex<float>, c10::complex<double>>;
TYPED_TEST_SUITE(OrderedSum, Types);

TYPED_TEST(OrderedSum, IsThatOfAPlainLoop) {
  for (const int64_t count : {0, 1, 7, 1023, 1024, 1025, 5000}) {
    for (const int positions : {1, 2, 3, 7}) {
      for (const int own : {-1, 0, positions - 1}) expect_plain<TypeParam>(positions, count, own);
    }
  }
}

// Some maxima are negative, and each is that of another source.
TEST(OrderedSum, TakesTheLargestOfTheLastElements) {
  for (const int64_t count : {1, 4, 1025}) {
    for (const int64_t maxima : {int64_t{1}, std::min<int64_t>(count, 3), count}) {
      for (const int own : {-1, 0, 2}) {
        std::vector<std::vector<double>> memory;
        for (int place = 0; place < 4; ++place) memory.push_back(summand<double>(place, count));
        std::vector<const std::byte*> sources;
        for (int place = 0; place < 3; ++place) {
          for (int64_t i = 0; i < count; ++i) memory[place][i] -= i % 3 == place ? 600.0 : 1300.0;
          sources.push_back(reinterpret_cast<const std::byte*>(memory[place].data()));
        }
        const auto summands = std::vector(memory.begin(), memory.begin() + 3);
        std::vector<double>& output = memory[static_cast<size_t>(own < 0 ? 3 : own)];
        ordered_sum(reinterpret_cast<std::byte*>(output.data()), sources, count, at::kDouble, maxima);
        for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
          const bool is_sum = static_cast<int64_t>(i) < count - maxima;
          const double largest = std::max({summands[0][i], summands[1][i], summands[2][i]});
          EXPECT_EQ(output[i], is_sum ? plain_sum(summands, i) : largest) << i << " of " << count << ", " << maxima;
          EXPECT_NE(plain_sum(summands, i), largest);
        }
      }
    }
  }
  double number = 1;
  auto* memory = reinterpret_cast<std::byte*>(&number);
  const std::byte* const sources[] = {memory, memory};
  EXPECT_THROW(ordered_sum(memory, sources, 1, at::kDouble, 2), LogicError);
  EXPECT_THROW(ordered_sum(memory, sources, 1, at::kLong, 1), LogicError);
}

TEST(OrderedSum, ListsWhatItSums) {
  int summed = 0;
  for (int type = 0; type < static_cast<int>(at::ScalarType::NumOptions); ++type) {
    summed += has_sum(static_cast<at::ScalarType>(type));
  }
  EXPECT_EQ(summed, 13);
  std::byte memory[64] = {};
  const std::byte* const sources[] = {memory, memory};
  EXPECT_THROW(ordered_sum(memory, sources, 1, at::kFloat8_e5m2), LogicError);
}

}  // namespace
}  // namespace orthant::ordered_sum_test

// ExactSum has the same bits in every order, and the value of a sum of integers that 128 bits hold.
#include "base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace orthant::exact_sum_test {
namespace {

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

TEST(ExactSum, SmallSumsAreExact) {
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({0, 0.5, 3, 1e15}), 1e15 + 3.5);
  EXPECT_EQ(sum_of({0x1p-300}), 0x1p-300);
  EXPECT_EQ(sum_of({0x1p319, 0x1p318}), 0x1.8p319);
  EXPECT_EQ(sum_of({0x1p-330}), 0);  // below the range
}

// Values of very different sizes: plain addition in two orders differs (the control), the exact sum does not.
TEST(ExactSum, OrderAndDivisionChangeNoBits) {
  std::mt19937_64 random(7);
  std::vector<double> values;
  for (int i = 0; i < 5000; ++i) {
    const double fraction = 1 + static_cast<double>(random() % (1u << 30)) / (1u << 30);
    values.push_back(std::ldexp(fraction, static_cast<int>(random() % 120) - 60));
  }
  const auto plain = [&] {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum;
  };
  const double exact = sum_of(values), before = plain();
  int control = 0;
  for (int turn = 0; turn < 20; ++turn) {
    std::ranges::shuffle(values, random);
    EXPECT_EQ(sum_of(values), exact);
    control += plain() != before;
    ExactSum total;
    const size_t cut = random() % values.size();
    for (const auto& [begin, end] : {std::pair<size_t, size_t>{cut, values.size()}, {0, cut}}) {
      ExactSum part;
      for (size_t i = begin; i < end; ++i) part.add(values[i]);
      total.add(part.numbers());
    }
    EXPECT_EQ(total.value(), exact);
  }
  EXPECT_GT(control, 0);
  long double wide = 0;
  std::ranges::sort(values);
  for (const double value : values) wide += value;
  EXPECT_NEAR(exact, static_cast<double>(wide), 1e-15 * exact);
}

// 2^31 additions of the largest digit fill the 63 bits that hold it, so it must be carried before.
TEST(LongExactSum, BillionsOfAdditionsAreCarried) {
  ExactSum sum;
  constexpr int64_t kAdditions = (int64_t{1} << 31) + 5;
  constexpr double kValue = 0x1p32 - 1;  // the largest digit
  for (int64_t i = 0; i < kAdditions; ++i) sum.add(kValue);
  const double want = kValue * static_cast<double>(kAdditions);
  EXPECT_NEAR(sum.value(), want, 1e-15 * want);
}

TEST(ExactSum, DigitsCarryIntoHigherOnes) {
  ExactSum sum;
  for (int i = 0; i < 3; ++i) sum.add(0x1.fffffffffffffp52);
  EXPECT_EQ(sum.value(), 3 * 0x1.fffffffffffffp52);
  ExactSum total;
  for (int rank = 0; rank < 1000; ++rank) total.add(sum.numbers());
  EXPECT_EQ(total.value(), 3000 * 0x1.fffffffffffffp52);
}

TEST(ExactSum, ValuesAboveTheRangeShow) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1, infinity}), infinity);
  EXPECT_EQ(sum_of({0x1p320}), infinity);
  EXPECT_EQ(sum_of({0x1.8p319, 0x1.8p319}), infinity);
  EXPECT_TRUE(std::isnan(sum_of({infinity, std::nan("")})));
}

}  // namespace
}  // namespace orthant::exact_sum_test

// The sum of squares equals a sum in long double within the rounding of n additions, on every SIMD target. The control
// leaves out the last element.
#include "model/kernels/reduce.h"

#include <limits>

#include "tests/model/kernels/testing.h"

namespace orthant::reduce_test {
namespace {

template <class T>
double sum_of_squares(const T* x, int64_t count) {
  ExactSum sum;
  add_squares(x, count, sum);
  return sum.value();
}

template <class T>
class SumOfSquares : public ::testing::Test {};
TYPED_TEST_SUITE(SumOfSquares, WideElements);

TYPED_TEST(SumOfSquares, IsTheSumOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    const int64_t block = kNormBlockElements;
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{13}, int64_t{1000}, block, 3 * block + 5}) {
      const auto x = random_values<T>(count, 1, 1e3);
      long double sum = 0;
      for (const T value : x) sum += static_cast<long double>(value) * value;
      // All terms are positive, so n additions and products in double have an error of at most n + 1 units of the sum.
      const double bound = (static_cast<double>(count) + 1) * 0x1p-53 * static_cast<double>(sum);
      EXPECT_NEAR(sum_of_squares(x.data(), count), static_cast<double>(sum), bound);
      if (count > 1000) continue;  // only up to here the bound is smaller than one element
      if (count > 0) {
        EXPECT_GT(std::abs(sum_of_squares(x.data(), count - 1) - static_cast<double>(sum)), bound);
      }
    }
  });
}

TYPED_TEST(SumOfSquares, LargeValuesDoNotOverflowAndBadOnesShow) {
  using T = TypeParam;
  for_each_target([] {
    std::vector<T> x(40000, T(1e20));
    EXPECT_NEAR(sum_of_squares(x.data(), 40000), 4e44, 4e44 * 1e-6);  // 1e20 in float has a relative error of 2^-24
    x[39999] = std::numeric_limits<T>::infinity();
    EXPECT_TRUE(std::isinf(sum_of_squares(x.data(), 40000)));
    x[20000] = std::numeric_limits<T>::quiet_NaN();
    EXPECT_TRUE(std::isnan(sum_of_squares(x.data(), 40000)));
  });
}

// Blocks may be divided among ranks in any way, and be added in any order: the bits stay. The control moves a cut into
// a block.
TYPED_TEST(SumOfSquares, DivisionOfBlocksAndThreadsChangeNoBits) {
  using T = TypeParam;
  constexpr int64_t kBlock = kNormBlockElements;
  const int64_t count = 90 * kBlock + 77;
  const auto x = random_values<T>(count, 1);
  expect_same_for_any_threads([&] { return std::vector<double>{sum_of_squares(x.data(), count)}; });
  const auto divided = [&](std::vector<int64_t> cuts) {
    ExactSum total;
    for (size_t i = cuts.size() - 1; i-- > 0;) {
      ExactSum part;
      add_squares(x.data() + cuts[i], cuts[i + 1] - cuts[i], part);
      total.add(part.numbers());
    }
    return total.numbers();
  };
  ExactSum whole;
  add_squares(x.data(), count, whole);
  EXPECT_EQ(divided({0, 17 * kBlock, 17 * kBlock, 60 * kBlock, count}), whole.numbers());
  EXPECT_EQ(divided({0, 89 * kBlock, count}), whole.numbers());
  int differ = 0;
  for (int64_t cut = 1; cut < 40; ++cut) differ += divided({0, cut, count}) != whole.numbers();
  EXPECT_GT(differ, 0);
}

}  // namespace
}  // namespace orthant::reduce_test

// Permutation: a bijection for every size that spreads samples evenly; golden values fix it across versions.
#include "data/permutation.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/errors.h"

namespace orthant::permutation_test {
namespace {

std::vector<int64_t> order(int64_t size, uint64_t seed, uint64_t epoch) {
  const Permutation permutation(size, seed, epoch);
  std::vector<int64_t> values;
  for (int64_t i = 0; i < size; ++i) values.push_back(permutation(i));
  return values;
}

TEST(Permutation, IsABijectionForEverySize) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (int64_t size : {1023, 1024, 1025, 4095, 4096, 4097, 65537, 99991}) sizes.push_back(size);
  for (int64_t size : sizes) {
    std::vector<bool> seen(size);
    for (int64_t value : order(size, 7, 3)) {
      ASSERT_GE(value, 0);
      ASSERT_LT(value, size);
      ASSERT_FALSE(seen[value]) << "size " << size << " gives " << value << " twice";
      seen[value] = true;
    }
  }
}

TEST(Permutation, SeedsAndEpochsDiffer) {
  const auto base = order(1000, 1, 0);
  EXPECT_EQ(base, order(1000, 1, 0));
  EXPECT_NE(base, order(1000, 2, 0));
  EXPECT_NE(base, order(1000, 1, 1));
  EXPECT_NE(order(1000, 2, 1), order(1000, 1, 2));
}

TEST(Permutation, MovesSamplesFarAndEvenly) {
  // The mean distance of a random permutation is n/3, and its number of fixed points is about 1.
  const int64_t n = 10000;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto values = order(n, seed, 0);
    double distance = 0;
    int fixed = 0, rises = 0;
    for (int64_t i = 0; i < n; ++i) {
      distance += static_cast<double>(std::abs(values[i] - i));
      fixed += values[i] == i;
      rises += i > 0 && values[i] > values[i - 1];
    }
    EXPECT_NEAR(distance / static_cast<double>(n), static_cast<double>(n) / 3, 0.03 * static_cast<double>(n)) << seed;
    EXPECT_LT(fixed, 10) << seed;
    EXPECT_NEAR(rises, n / 2, 200) << seed;
  }
}

TEST(Permutation, GoldenValues) {
  // Checkpoints rely on these values; a change would be a change of format.
  EXPECT_EQ(order(10, 1234, 0), (std::vector<int64_t>{1, 8, 9, 2, 0, 5, 4, 3, 7, 6}));
  EXPECT_EQ(order(10, 1234, 1), (std::vector<int64_t>{5, 4, 8, 6, 1, 9, 3, 2, 7, 0}));
  EXPECT_EQ(Permutation(int64_t{1} << 40, 5, 2)(123456789), 1027376200290);
}

TEST(Permutation, RefusesNonsense) {
  EXPECT_THROW(Permutation(0, 1, 0), LogicError);
  EXPECT_THROW(Permutation(5, 1, 0)(5), LogicError);
  EXPECT_THROW(Permutation(5, 1, 0)(-1), LogicError);
}

}  // namespace
}  // namespace orthant::permutation_test

// The Philox generator has its published values, and dropout masks and normal draws are functions of the seed, the
// stream and the global index. The controls shift the index or change the stream.
#include "model/kernels/random.h"

#include "base/errors.h"
#include "base/philox.h"
#include "tests/model/kernels/testing.h"

namespace orthant::random_test {
namespace {

using Words = std::array<uint32_t, 4>;

/// The known answers that the authors of Random123 publish (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_NE(philox({1, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

constexpr uint64_t kSeed = 0x123456789ABCDEFull;
constexpr uint64_t kStream = 0xFEDCBA9876543210ull;

template <class T>
std::vector<T> dropped(std::vector<T> x, uint64_t first, double p, uint64_t stream = kStream) {
  dropout(Dropout<T>{.x = x.data(),
                     .y = x.data(),
                     .count = static_cast<int64_t>(x.size()),
                     .seed = kSeed,
                     .stream = stream,
                     .first_index = first,
                     .p = p});
  return x;
}

template <class T>
std::vector<T> expected_dropout(const std::vector<T>& x, uint64_t first, double p) {
  std::vector<T> y;
  for (size_t i = 0; i < x.size(); ++i) {
    const uint64_t index = first + i;
    const bool kept = philox_block(kSeed, kStream, index / 4)[index % 4] >= p * 4294967296.0;
    const Wide<T> scaled = static_cast<Wide<T>>(to_double(x[i])) * static_cast<Wide<T>>(1.0 / (1.0 - p));
    y.push_back(round_to<T>(kept ? scaled : 0));
  }
  return y;
}

template <class T>
class DropoutOf : public ::testing::Test {};
TYPED_TEST_SUITE(DropoutOf, AllElements);

TYPED_TEST(DropoutOf, MaskIsPhiloxByGlobalIndexOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t count : {1, 5, 64, 1024, 2500}) {
      // The last of these ranges crosses a change of the upper 32 bits of the block number.
      for (const uint64_t first : {0ul, 1ul, 6ul, 1023ul, (4ul << 32) - 11}) {
        const auto x = random_values<T>(count, 1);
        const auto y = dropped(x, first, 0.3);
        EXPECT_TRUE(same_bits(y, expected_dropout(x, first, 0.3)));
        if (count > 64) {
          EXPECT_FALSE(same_bits(y, expected_dropout(x, first + 1, 0.3)));
          EXPECT_FALSE(same_bits(y, dropped(x, first, 0.3, kStream + 1)));
        }
      }
    }
  });
}

// A vector dropped in pieces, each from its global index on, equals the vector dropped at once.
TYPED_TEST(DropoutOf, CutsAndThreadsChangeNoBits) {
  using T = TypeParam;
  const auto x = random_values<T>(100000, 1);
  const auto whole = dropped(x, 10, 0.25);
  std::vector<T> parts;
  size_t begin = 0;
  for (const size_t end : {size_t{3}, size_t{1030}, size_t{50001}, size_t{100000}}) {
    const auto part = dropped(std::vector<T>(x.begin() + begin, x.begin() + end), 10 + begin, 0.25);
    parts.insert(parts.end(), part.begin(), part.end());
    begin = end;
  }
  EXPECT_TRUE(same_bits(whole, parts));
  expect_same_for_any_threads([&] { return dropped(x, 10, 0.25); });
}

TEST(DropoutRate, IsPAndZeroDropsNothing) {
  const std::vector<float> ones(1000000, 1.0f);
  for (const double p : {0.1, 0.5, 0.9}) {
    int64_t zeros = 0;
    for (const float value : dropped(ones, 0, p)) zeros += value == 0;
    EXPECT_NEAR(static_cast<double>(zeros), 1e6 * p, 5 * std::sqrt(1e6 * p * (1 - p)));  // five standard deviations
  }
  EXPECT_TRUE(same_bits(dropped(ones, 0, 0.0), ones));
  EXPECT_THROW(dropped(ones, 0, 1.0), LogicError);
  EXPECT_THROW(dropped(ones, 0, -0.1), LogicError);
}

template <class T>
std::vector<T> normals(int64_t count, uint64_t first, double mean = 0.0, double std = 1.0) {
  std::vector<T> out(static_cast<size_t>(count));
  fill_normal(FillNormal<T>{.out = out.data(),
                            .count = count,
                            .seed = kSeed,
                            .stream = kStream,
                            .first_index = first,
                            .mean = mean,
                            .std = std});
  return out;
}

double box_muller(uint64_t index) {
  const Words words = philox_block(kSeed, kStream, index / 2);
  const auto uniform = [](uint32_t low, uint32_t high) {
    return static_cast<double>((uint64_t{high} << 32 | low) >> 12) * 0x1p-52;
  };
  const double radius = std::sqrt(-2 * std::log(1 - uniform(words[0], words[1])));
  const double angle = 2 * 3.14159265358979323846 * uniform(words[2], words[3]);
  return radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle));
}

TEST(Normal, IsBoxMullerByGlobalIndexOnEveryTarget) {
  for_each_target([] {
    for (const uint64_t first : {uint64_t{0}, uint64_t{3}, (uint64_t{2} << 32) - 7}) {
      const auto values = normals<double>(1100, first);
      std::vector<double> expected, shifted, bound;
      for (uint64_t i = 0; i < 1100; ++i) {
        expected.push_back(box_muller(first + i));
        shifted.push_back(box_muller(first + i + 1));
        // The logarithm has 4 ulp (8 units), which the root halves. Sine and cosine have 3 ulp of at most 1, plus one
        // unit of the angle (2 pi). One product follows. The radius is at most 8.5.
        bound.push_back(8.5 * (4 + 1 + 6 + 2 * 3.15 + 1) * 0x1p-53);
      }
      EXPECT_WITHIN(values, expected, bound);
      EXPECT_NOT_WITHIN(values, shifted, bound);
    }
  });
}

TEST(Normal, CutsThreadsAndWidthChangeNoBits) {
  const auto whole = normals<double>(70001, 5, 0.5, 0.02);
  auto parts = normals<double>(1023, 5, 0.5, 0.02);
  const auto rest = normals<double>(70001 - 1023, 5 + 1023, 0.5, 0.02);
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_TRUE(same_bits(whole, parts));
  EXPECT_FALSE(same_bits(whole, normals<double>(70001, 6, 0.5, 0.02)));
  expect_same_for_any_threads([] { return normals<float>(70001, 5); });
  expect_same_for_any_width([] { return normals<double>(70001, 5); });
  const auto standard = normals<double>(100, 5);
  const auto narrow = normals<float>(100, 5);
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(normal(kSeed, kStream, 5 + i), standard[i]);
    EXPECT_EQ(static_cast<float>(standard[i]), narrow[i]);
  }
}

TEST(Normal, MomentsAreThoseOfTheDistribution) {
  const int64_t n = 1000000;
  const auto values = normals<float>(n, 0, 1.5, 2.0);
  double moments[5] = {};
  double neighbors = 0, last = 0;
  for (const float value : values) {
    const double z = (value - 1.5) / 2.0;
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(z, k);
    neighbors += z * last;
    last = z;
  }
  // The moments are 0, 1, 0 and 3. The variance of the k-th sample moment is (E z^2k - (E z^k)^2) / n. The bound is
  // five standard deviations; the product of neighbors checks that draws are independent.
  const double per = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(moments[1] / n, 0, per * std::sqrt(1.0));
  EXPECT_NEAR(moments[2] / n, 1, per * std::sqrt(2.0));
  EXPECT_NEAR(moments[3] / n, 0, per * std::sqrt(15.0));
  EXPECT_NEAR(moments[4] / n, 3, per * std::sqrt(96.0));
  EXPECT_NEAR(neighbors / n, 0, per * std::sqrt(1.0));
}

}  // namespace
}  // namespace orthant::random_test

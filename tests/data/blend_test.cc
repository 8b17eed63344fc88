// Blend: the counts of sources follow their weights at every sample, and each sample of each source comes once.
#include "data/blend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/errors.h"
#include "tests/support/says.h"

namespace orthant::blend_test {
namespace {

std::vector<int64_t> sources(const Blend& blend, int64_t count) {
  std::vector<int64_t> found;
  for (int64_t g = 0; g < count; ++g) found.push_back(blend(g).source);
  return found;
}

TEST(Blend, SmallExamples) {
  EXPECT_EQ(sources(Blend({2.5}), 3), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(sources(Blend({1, 1, 1}), 6), (std::vector<int64_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(sources(Blend({3, 1}), 8), (std::vector<int64_t>{0, 0, 1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(sources(Blend({1, 3}), 4), (std::vector<int64_t>{1, 0, 1, 1}));
  EXPECT_EQ(Blend({3, 1})(5), (BlendedSample{0, 4}));
}

// Only the ratios of weights matter.
TEST(Blend, TinyAndLargeWeights) {
  EXPECT_EQ(sources(Blend({1e-308, 5e-308}), 60), sources(Blend({1, 5}), 60));
  EXPECT_EQ(sources(Blend({1.5e308, 1e308}), 60), sources(Blend({3, 2}), 60));
  EXPECT_EQ(sources(Blend({1e-308, 1e308, 5e-324}), 4), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_EQ(Blend({1e-308, 1e308})(int64_t{1} << 46).source, 1);
}

// Webster's method of apportionment: the next seat goes to the party with the largest weight / (2 seats + 1).
TEST(Blend, TheCountsAreThoseOfWebstersMethod) {
  const std::vector<std::vector<double>> cases = {{0.7, 0.2, 0.1}, {1, 2, 3, 4, 5},    {1e-6, 1, 1e6},
                                                  {0.1, 0.1, 0.1}, {1.0 / 3, 2.0 / 3}, std::vector(100, 0.01)};
  for (const auto& weights : cases) {
    const Blend blend(weights);
    std::vector<int64_t> seats(weights.size());
    for (int64_t g = 0; g < 3000; ++g) {
      size_t best = 0;
      const auto time = [&](size_t s) { return static_cast<double>(2 * seats[s] + 1) / weights[s]; };
      for (size_t s = 1; s < weights.size(); ++s) {
        if (time(s) < time(best)) best = s;
      }
      ASSERT_EQ(blend(g), (BlendedSample{static_cast<int64_t>(best), seats[best]})) << g;
      ++seats[best];
    }
  }
}

// Far into a run, too: neighbors count on from one another, and the counts are near the shares.
TEST(Blend, TheOrderGoesOnFarIntoARun) {
  const std::vector<double> weights = {0.5, 0.3, 0.15, 0.05};
  const Blend blend(weights);
  for (const int64_t begin : {int64_t{1'000'000'007}, int64_t{1} << 45}) {
    std::map<int64_t, int64_t> last;
    for (int64_t g = begin; g < begin + 500; ++g) {
      const BlendedSample sample = blend(g);
      const auto [found, is_new] = last.emplace(sample.source, sample.number);
      EXPECT_EQ(sample.number, is_new ? sample.number : ++found->second) << g;
      const double share = weights[static_cast<size_t>(sample.source)] * static_cast<double>(g);
      EXPECT_NEAR(static_cast<double>(sample.number), share, 2 + 1e-12 * share) << g;
    }
    EXPECT_EQ(last.size(), weights.size());
  }
}

TEST(Blend, RefusesWeightsThatGiveNoSamples) {
  for (const std::vector<double>& weights : {std::vector<double>{}, {1, 0}, {1, -1}, {INFINITY}, {NAN}}) {
    EXPECT_THROW(Blend{weights}, LogicError);
  }
}

}  // namespace
}  // namespace orthant::blend_test

// Redistribution of layers away from the stage with the output layer: it gives the published splits, and the best of
// all splits of small models, found by enumeration.
#include "parallel/vocabulary/redistribution_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/support/random.h"

namespace orthant::redistribution_test {
namespace {

TEST(Redistribution, OfThePublishedModels) {
  struct Row {
    int ranks, layers;
    double hidden, vocabulary;
    double whole, moved;  // longest stage, in layers: equal split, redistributed
    int on_last;          // layers on the last stage; published for 8 ranks
  };
  // GPT models with sequences of s = 2048 tokens: the output layer takes as long as 6V / (72h + 12s) layers.
  const std::vector<Row> table = {
      {8, 32, 3072, 32e3, 4.78, 4.78, 4},   {8, 32, 3072, 64e3, 5.56, 5, 0},     {8, 32, 3072, 128e3, 7.12, 5, 0},
      {8, 32, 3072, 256e3, 10.25, 6.25, 0}, {16, 48, 4096, 32e3, 3.60, 3.60, 3}, {16, 48, 4096, 64e3, 4.20, 4, 0},
      {16, 48, 4096, 128e3, 5.40, 4, 0},    {16, 48, 4096, 256e3, 7.81, 4.81, 0}, {32, 64, 5120, 32e3, 2.49, 2.49, 2},
      {32, 64, 5120, 64e3, 2.98, 2.98, 2},  {32, 64, 5120, 128e3, 3.95, 3, 0},   {32, 64, 5120, 256e3, 5.91, 3.91, 0},
  };
  for (const Row& row : table) {
    std::vector<double> beside(static_cast<size_t>(row.ranks), 0);
    beside.back() = 6 * row.vocabulary / (72 * row.hidden + 12 * 2048);
    const std::vector<int> equal(static_cast<size_t>(row.ranks), row.layers / row.ranks);
    EXPECT_NEAR(longest_stage(equal, beside), row.whole, 0.0051) << row.ranks << " " << row.vocabulary;
    const std::vector<int> moved = redistributed(row.layers, beside);
    EXPECT_NEAR(longest_stage(moved, beside), row.moved, 0.0051) << row.ranks << " " << row.vocabulary;
    EXPECT_EQ(std::accumulate(moved.begin(), moved.end(), 0), row.layers);
    EXPECT_EQ(moved.back(), row.on_last) << row.ranks << " " << row.vocabulary;
  }
  EXPECT_EQ(redistributed(32, {0, 0, 0, 0, 0, 0, 0, 1.56}), (std::vector<int>{4, 5, 5, 5, 5, 4, 4, 0}));
  EXPECT_EQ(redistributed(34, {0, 0, 0, 0, 0, 0, 0, 0.78}), (std::vector<int>{4, 5, 5, 5, 5, 5, 5, 0}));
  EXPECT_EQ(redistributed(5, {0, 0}), (std::vector<int>{2, 3}));
}

TEST(Redistribution, IsTheBestOfAllWays) {
  Random random(95);
  for (int round = 0; round < 300; ++round) {
    const int stages = 1 + random.below(4), layers = random.below(9);
    std::vector<double> beside;
    for (int stage = 0; stage < stages; ++stage) beside.push_back(random.below(2) * 0.25 * random.below(20));
    double best = 1e9;
    int fewest = layers;  // layers on the last stage, among the best splits
    std::vector<int> ways(static_cast<size_t>(stages), 0);
    const std::function<void(int, int)> visit = [&](int stage, int left) {
      if (stage + 1 == stages) {
        ways.back() = left;
        const double longest = longest_stage(ways, beside);
        if (longest < best) fewest = layers;
        if (longest <= best) fewest = std::min(fewest, left);
        best = std::min(best, longest);
        return;
      }
      for (int count = 0; count <= left; ++count) {
        ways[static_cast<size_t>(stage)] = count;
        visit(stage + 1, left - count);
      }
    };
    visit(0, layers);
    const std::vector<int> moved = redistributed(layers, beside);
    EXPECT_EQ(longest_stage(moved, beside), best) << stages << " " << layers;
    if (beside.back() > 0) {
      EXPECT_EQ(moved.back(), fewest) << stages << " " << layers;
    }
    EXPECT_EQ(std::accumulate(moved.begin(), moved.end(), 0), layers);
    // The first stage never has more layers than another stage with the same other work.
    for (size_t stage = 1; stage + 1 < moved.size(); ++stage) {
      if (beside[stage] == beside[0]) {
        EXPECT_LE(moved[0], moved[stage]) << stages << " " << layers;
      }
    }
  }
}

}  // namespace
}  // namespace orthant::redistribution_test

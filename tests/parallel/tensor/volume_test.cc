// Communication volume of tensor parallelism, in elements received: it equals numbers worked out by hand and published
// ones, and stays above the lower bound of any arrangement.
#include <gtest/gtest.h>

#include "parallel/tensor/volume_plan.h"

namespace orthant::volume_test {
namespace {

TensorPlan mesh(int rows, int columns, int depth, ProductForm form = ProductForm::stationary) {
  return {.rows = rows, .columns = columns, .depth = depth, .form = form};
}

TEST(TensorVolume, OfOneLinearLayer) {
  struct Case {
    TensorPlan plan;
    double forward, backward, depth;
  };
  const auto summa = ProductForm::summa;
  for (const Case& c : {Case{mesh(2, 2, 2), 144, 288, 72},
                        {mesh(2, 3, 2), 144, 288, 48},
                        {mesh(1, 4, 2), 216, 432, 72},
                        {mesh(2, 2, 1, summa), 216, 432, 0},
                        {mesh(3, 3, 2, summa), 128, 256, 32},
                        {mesh(4, 4, 1, summa), 162, 324, 0},
                        {mesh(2, 2, 4, summa), 108, 216, 108}}) {
    const auto at = testing::Message() << c.plan.rows << " x " << c.plan.columns << " x " << c.plan.depth;
    const TensorVolume elements = count_received_elements(c.plan, {.in = 12, .out = 24}, 48);
    EXPECT_DOUBLE_EQ(elements.forward, c.forward) << at;
    EXPECT_DOUBLE_EQ(elements.backward, c.backward) << at;
    EXPECT_DOUBLE_EQ(elements.depth, c.depth) << at;
  }
}

// The second layer of an MLP keeps its wider input stationary: it sends its output once in each direction.
TEST(TensorVolume, OfOneLinearLayerToTheStream) {
  const LinearShape narrowing = {.in = 24, .out = 12, .to_stream = true};
  ASSERT_EQ(stationary_of(mesh(2, 2, 2), narrowing), Stationary::input);
  const TensorVolume elements = count_received_elements(mesh(2, 2, 2), narrowing, 48);
  EXPECT_DOUBLE_EQ(elements.forward, 144);
  EXPECT_DOUBLE_EQ(elements.backward, 216);
  EXPECT_DOUBLE_EQ(elements.depth, 72);
}

// One transformer layer: linear layers h -> 3h, h -> h, h -> 4h and 4h -> h, for T = 4096, h = 1024 and 8 ranks.
constexpr int64_t kHidden = 1024, kTokens = 4096;
std::vector<LinearShape> layer(int64_t h) { return {{h, 3 * h}, {h, h, true}, {h, 4 * h}, {4 * h, h, true}}; }

TEST(TensorVolume, OfAWholeLayer) {
  const auto elements = [](const TensorPlan& plan) {
    return count_received_elements(plan, layer(kHidden), kTokens).total();
  };
  EXPECT_DOUBLE_EQ(elements(mesh(2, 2, 2)), 17825792);
  EXPECT_DOUBLE_EQ(elements(mesh(2, 2, 2, ProductForm::summa)), 23592960);
  EXPECT_DOUBLE_EQ(elements(mesh(1, 2, 4)), 14680064);
  EXPECT_DOUBLE_EQ(elements(mesh(4, 2, 1)), 19398656);
  EXPECT_DOUBLE_EQ(elements(mesh(1, 8, 1)), 36700160);
  EXPECT_DOUBLE_EQ(elements({.columns = 8, .stream = StreamSharding::none}), 29360128);
  EXPECT_DOUBLE_EQ(elements({.columns = 8, .stream = StreamSharding::tokens}), 36700160) << "as the width's cut";
}

// Elements received on 64 ranks with h = 8192 and 196,608 tokens: `published` for SUMMA, `ours` for stationary
// products.
TEST(TensorVolume, OfSixtyFourRanks) {
  struct Case {
    int rows, columns, depth;
    double published, ours;
  };
  const auto close = [](double have, double want) { EXPECT_NEAR(have / want, 1, 0.005) << have; };
  for (const Case& c : {Case{8, 8, 1, 3.96e9, 2.03e9},
                        {4, 4, 4, 2.11e9, 1.28e9},
                        {2, 2, 16, 1.51e9, 1.23e9},
                        {16, 4, 1, 2.15e9, 1.32e9},
                        {32, 2, 1, 1.70e9, 1.42e9},
                        {8, 4, 2, 2.14e9, 1.31e9},
                        {4, 8, 2, 3.95e9, 2.01e9},
                        {1, 8, 8, 3.88e9, 1.94e9},
                        {64, 1, 1, 2.38e9, 2.38e9}}) {
    close(count_received_elements(mesh(c.rows, c.columns, c.depth, ProductForm::summa), layer(8192), 196608).total(),
          c.published);
    close(count_received_elements(mesh(c.rows, c.columns, c.depth), layer(8192), 196608).total(), c.ours);
  }
}

TEST(TensorVolume, StayAboveTheBound) {
  EXPECT_NEAR(product_bound(kTokens, kHidden, kHidden, 8), 802036, 1);
  EXPECT_NEAR(product_bound(kTokens, 4 * kHidden, kHidden, 8), 1917245, 1);
  for (const auto& [rows, columns] : {std::pair{8, 1}, {4, 2}}) {
    EXPECT_DOUBLE_EQ(count_received_elements(mesh(rows, columns, 1), {kHidden, kHidden}, kTokens).forward, 917504);
  }
  for (const auto& [rows, columns] : {std::pair{2, 4}, {4, 2}}) {
    const TensorPlan plan = mesh(rows, columns, 1);
    EXPECT_DOUBLE_EQ(count_received_elements(plan, {kHidden, 4 * kHidden}, kTokens).forward, 2097152);
    EXPECT_DOUBLE_EQ(count_received_elements(plan, {4 * kHidden, kHidden, true}, kTokens).forward, 2097152)
        << "input-stationary";
  }
  EXPECT_DOUBLE_EQ(count_received_elements(mesh(2, 4, 1), {4 * kHidden, kHidden}, kTokens).forward, 6815744);
  for (const TensorPlan& plan : tensor_arrangements(64)) {
    if (plan.depth > 1) continue;  // the bound does not hold for replicated operands
    for (const LinearShape& linear : layer(8192)) {
      const auto m = 196608.0, n = static_cast<double>(linear.out), k = static_cast<double>(linear.in);
      const TensorVolume elements = count_received_elements(plan, linear, m);
      EXPECT_GE(elements.forward + elements.backward, 0.999 * product_bound(m, n, k, 64)) << plan.rows;
    }
  }
}

TEST(TensorArrangements, AreAllFactorizations) {
  EXPECT_EQ(tensor_arrangements(1).size(), 2u + 1u);
  EXPECT_EQ(tensor_arrangements(8).size(), 2u + 10u);
  EXPECT_EQ(tensor_arrangements(12).size(), 2u + 18u);
  for (const TensorPlan& plan : tensor_arrangements(12)) EXPECT_EQ(plan.ranks(), 12);
}

}  // namespace
}  // namespace orthant::volume_test

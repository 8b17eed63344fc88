// add_product() with bfloat16 operands equals the float64 product, in one part or in several. Controls: a sum that is
// overwritten differs from one that is added to, and a product without its first element exceeds the bound.
// matrix_product() equals it too, rounded to bfloat16, in one block or in several. Control: a product without its bias.
#include "model/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <tuple>

namespace orthant::linear_test {
namespace {

constexpr double kBound = 1e-6;  // float32 sums of products that are exact, relative to the largest element

double error(const at::Tensor& have, const at::Tensor& want) {
  return ((have.to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>();
}

// Sizes below and above those from which a CPU without AMX converts the operands; the largest takes three parts.
TEST(AddProduct, EqualsTheFloat64Product) {
  at::manual_seed(1);
  for (const int64_t depth : {1, 40, 1100}) {
    for (const auto& [rows, columns] : {std::pair(7, 5), std::pair(512, 700)}) {
      const at::Tensor a = at::randn({depth, rows}).to(at::kBFloat16).t(),
                       b = at::randn({depth, columns}).to(at::kBFloat16);
      const at::Tensor want = a.to(at::kDouble).mm(b.to(at::kDouble)), before = at::randn({rows, columns});
      at::Tensor sum = before.clone();
      add_product(sum, a, b, false);
      EXPECT_LT(error(sum, want), kBound) << depth << " " << rows;
      sum.copy_(before);
      add_product(sum, a, b, true);
      EXPECT_LT(error(sum, want + before.to(at::kDouble)), kBound) << depth << " " << rows;
      EXPECT_GT(error(sum, want), kBound) << depth << " " << rows;
      const at::Tensor first = a.narrow(1, 0, 1).to(at::kDouble).mm(b.narrow(0, 0, 1).to(at::kDouble));
      EXPECT_GT(error(want - first, want), kBound) << depth << " " << rows;
    }
  }
}

TEST(MatrixProduct, EqualsTheFloat64Product) {
  at::manual_seed(1);
  constexpr double kTwoRoundings = 1.0 / 256;  // of bfloat16: the product, and the sum with the bias
  for (const auto& [rows, depth, columns] : {std::tuple(7, 1, 5), std::tuple(600, 300, 700)}) {
    const at::Tensor a = at::randn({rows, depth}).to(at::kBFloat16),
                     b = at::randn({columns, depth}).to(at::kBFloat16).t(),
                     bias = at::randn({columns}).to(at::kBFloat16);
    const at::Tensor want = a.to(at::kDouble).mm(b.to(at::kDouble)), with_bias = want + bias.to(at::kDouble);
    EXPECT_LT(error(matrix_product(a, b), want), kTwoRoundings) << rows;
    EXPECT_LT(error(matrix_product(a, b, bias), with_bias), kTwoRoundings) << rows;
    EXPECT_GT(error(matrix_product(a, b), with_bias), kTwoRoundings) << rows;
    const at::Tensor y = at::empty({rows, columns}, a.options());
    write_product(y, a, b);
    EXPECT_TRUE(y.equal(matrix_product(a, b))) << rows;
    write_product_by_blocks(y, a, b, bias);
    EXPECT_LT(error(y, with_bias), kTwoRoundings) << rows;
  }
}

TEST(AddProduct, OfNothingIsZero) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor sum = at::ones({3, 2}, type == at::kBFloat16 ? at::kFloat : at::kDouble);
    const at::Tensor a = at::ones({3, 0}, type), b = at::ones({0, 2}, type);
    add_product(sum, a, b, true);
    EXPECT_EQ(sum.sum().item<double>(), 6) << type;
    add_product(sum, a, b, false);
    EXPECT_EQ(sum.sum().item<double>(), 0) << type;
  }
}

}  // namespace
}  // namespace orthant::linear_test

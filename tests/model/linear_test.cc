// add_product() with bfloat16 operands equals the float64 product, in one part or in several. Controls: a sum that is
// overwritten differs from one that is added to, and a product without its first element exceeds the bound.
#include "model/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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

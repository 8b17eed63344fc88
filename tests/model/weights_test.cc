// Weights of which a rank holds a shard. The initial values are those of the unsharded weights for any ranges, and the
// flat buffer keeps each group of parameters contiguous.
#include "model/weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "model/optimizer.h"
#include "tests/support/tiny_model.h"

namespace orthant::weights_test {
namespace {

using Held = std::vector<std::pair<int64_t, int64_t>>;

// The tiny model's parameters with the ranges that held() returns. Sharded parameters are in group 1, others in group
// 0.
std::vector<ParameterInfo> parts(const std::function<Held(const ParameterInfo&)>& held) {
  auto table = parameter_table(tiny_architecture());
  for (ParameterInfo& parameter : table) {
    parameter.held = held(parameter);
    parameter.group = parameter.held.empty() ? 0 : 1;
  }
  return table;
}

// Uneven ranges: rows of the matrices that read the residual stream, columns of those that write it, and gains
// unsharded.
Held some(const ParameterInfo& parameter) {
  if (parameter.shape.size() < 2) return {};
  const int64_t rows = parameter.shape[0], columns = parameter.shape[1];
  if (parameter.name.find("o_proj") != std::string::npos) return {{0, rows}, {3, columns - 4}};
  if (parameter.name.find("down_proj") != std::string::npos) return {{1, rows - 2}, {5, columns}};
  return {{1, rows - 1}, {0, columns}};
}

// Initial values follow global indices: a shard equals that part of the unsharded weight, not a draw from index 0 on.
TEST(PartsOfWeights, InitialValuesEqualTheUnshardedWeights) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Weights whole(parameter_table(tiny_architecture()), dtype), part(parts(some), dtype);
    whole.initialize(7);
    part.initialize(7);
    for (size_t p = 0; p < part.parameters().size(); ++p) {
      const ParameterInfo& info = part.parameters()[p];
      EXPECT_TRUE(part.master(p).equal(shard_of(info, whole.master(p)))) << info.name;
      if (!info.held.empty()) {
        EXPECT_LT(part.master(p).numel(), whole.master(p).numel());
        const at::Tensor corner =
            whole.master(p).slice(0, 0, part.master(p).size(0)).slice(1, 0, part.master(p).size(1));
        EXPECT_FALSE(part.master(p).equal(corner)) << "drawn from index 0 on";
      }
    }
  }
}

// A fused weight is the concatenation of the shards of its members.
TEST(PartsOfWeights, FusedWeightIsAConcatenation) {
  Weights part(parts(some), at::kDouble);
  part.initialize(7);
  const at::Tensor qkv = part["model.layers.0.self_attn.qkv_proj"].value.detach();
  const int64_t q = part.master(2).size(0), k = part.master(3).size(0), v = part.master(4).size(0);
  EXPECT_EQ(part.parameters()[2].name, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(qkv.size(0), q + k + v);
  EXPECT_TRUE(qkv.narrow(0, q, k).equal(part.master(3)));
}

// The groups are disjoint ranges that cover the flat buffer. Weights are aligned and do not overlap.
TEST(PartsOfWeights, GroupsAreContiguous) {
  const auto table = parts(some);
  const FlatLayout flat = flat_layout(table);
  ASSERT_EQ(flat.groups.size(), 2u);
  EXPECT_EQ(flat.groups[0].first, 0);
  EXPECT_EQ(flat.groups[1].second, flat.elements);
  EXPECT_LE(flat.groups[0].second, flat.groups[1].first);
  std::vector<int> used(static_cast<size_t>(flat.elements));
  for (size_t w = 0; w < flat.weights.size(); ++w) {
    const auto [offset, size] = flat.weights[w];
    const auto& [begin, end] = flat.groups[static_cast<size_t>(table[flat.members[w].first].group)];
    EXPECT_TRUE(begin <= offset && offset + size <= end);
    EXPECT_EQ(offset % kFlatAlignElements, 0);
    for (int64_t i = offset; i < offset + size; ++i) ++used[static_cast<size_t>(i)];
  }
  EXPECT_EQ(*std::max_element(used.begin(), used.end()), 1) << "two weights in one place";
}

TEST(PartsOfWeights, SumsSquaresOfTheShard) {
  Weights part(parts(some), at::kDouble);
  part.gradients().copy_(at::arange(part.flat().elements, at::kDouble).sin());
  for (size_t p = 0; p < part.parameters().size(); ++p) {
    const double want = part.gradient(p).square().sum().item<double>();
    SquaresSum squares;
    add_gradient_squares(part, p, 0, part.gradient(p).numel(), squares);
    EXPECT_NEAR(squares.total().value(), want, 1e-12 * want);
  }
}

// The members of a fused weight must be in one group.
TEST(PartsOfWeights, FusedWeightInTwoGroupsIsALogicError) {
  auto table = parameter_table(tiny_architecture());
  table[3].group = 1;
  EXPECT_THROW(flat_layout(table), LogicError);
}

}  // namespace
}  // namespace orthant::weights_test

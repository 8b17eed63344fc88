// Recomputation of parts of a block: the ranges as values, and the operations that a model runs. The controls show that
// a model without recomputation, and one that recomputes whole blocks, run other operations. transformer_test.cc
// compares the bits of every set with those of a model that recomputes nothing.
#include "model/recompute_plan.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/errors.h"
#include "base/text.h"
#include "model/transformer.h"
#include "tests/support/recomputations.h"
#include "tests/support/tiny_model.h"

namespace orthant::recompute_test {
namespace {

using Names = std::vector<std::string>;
using Ranges = std::vector<RecomputedRange>;

Ranges ranges(const Names& names, const TinyOptions& options = {}) {
  return recomputed_ranges(block_operations(tiny_architecture(options)), names);
}

// A block has 8 operations: norm, qkv, attention, o, norm, gate and up, activation, down.
TEST(RecomputedRanges, EndWithTheProductThatReadsWhatIsDiscarded) {
  EXPECT_EQ(ranges({}), Ranges{});
  EXPECT_EQ(ranges({"norms"}), (Ranges{{0, 2}, {4, 6}}));
  EXPECT_EQ(ranges({"attention"}), (Ranges{{2, 4}}));
  EXPECT_EQ(ranges({"swiglu"}), (Ranges{{6, 8}}));
  EXPECT_EQ(ranges({"mlp"}), (Ranges{{5, 8}}));
  EXPECT_EQ(ranges({kWholeBlock}), (Ranges{{0, 8}}));
  EXPECT_EQ(ranges({"swiglu"}, {.mlp = "gelu_tanh"}), (Ranges{{6, 8}}));
}

TEST(RecomputedRanges, MergeIfTheyOverlapAndNotIfTheyTouch) {
  EXPECT_EQ(ranges({"norms", "mlp"}), (Ranges{{0, 2}, {4, 8}}));
  EXPECT_EQ(ranges({"mlp", "norms"}), (Ranges{{0, 2}, {4, 8}})) << "the order of the names has no effect";
  EXPECT_EQ(ranges({"mlp", "swiglu"}), (Ranges{{5, 8}}));
  EXPECT_EQ(ranges({"norms", "attention", "swiglu"}), (Ranges{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_EQ(ranges({"norms", "norms"}), ranges({"norms"}));
}

// Norms of heads lie between the projection of queries and keys and attention: 9 operations.
TEST(RecomputedRanges, OfAttentionHaveTheNormsOfHeads) {
  EXPECT_EQ(ranges({"attention"}, {.qk_norm = true}), (Ranges{{2, 5}}));
  EXPECT_EQ(ranges({"norms"}, {.qk_norm = true}), (Ranges{{0, 2}, {5, 7}}));
}

TEST(RecomputedRanges, OfNamesWithoutOperationsAreErrors) {
  EXPECT_THROW(ranges({"nrms"}), LogicError);
  EXPECT_THROW(recomputed_ranges({}, {"attention"}), LogicError);
}

TEST(Recomputation, AppliesToEveryNthBlock) {
  const Recomputation third{.names = {"norms"}, .layers = 3};
  std::vector<int64_t> layers;
  for (int64_t layer = 0; layer < 10; ++layer) {
    if (third.applies_to(layer)) layers.push_back(layer);
  }
  EXPECT_EQ(layers, (std::vector<int64_t>{2, 5, 8}));
  EXPECT_EQ(third.num_layers(0, 10), 3);
  EXPECT_EQ(third.num_layers(2, 5), 1);
  EXPECT_EQ(third.num_layers(3, 5), 0);
  EXPECT_EQ(Recomputation{}.num_layers(0, 10), 0);
}

// Counts the calls of a model's primitives.
struct Calls {
  int norms = 0, products = 0, products_backward = 0, attention = 0, local = 0;
  bool operator==(const Calls&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Calls& c) {
  return out << c.norms << " norms, " << c.products << " products, " << c.products_backward << " backward alone, "
             << c.attention << " attention, " << c.local << " local";
}

Primitives counting(const Primitives& inner, Calls& calls) {
  Primitives p = inner;
  p.add_norm = [inner, &calls](const std::string& function, const at::Tensor& x, const at::Tensor& residual,
                               const Weight& gain, double eps) {
    ++calls.norms;
    return inner.add_norm(function, x, residual, gain, eps);
  };
  p.linear = [inner, &calls](const at::Tensor& x, const Weight& weight) {
    ++calls.products;
    return inner.linear(x, weight);
  };
  p.linear_backward = [inner, &calls](const at::Tensor& x, const Weight& weight, const at::Tensor& dy) {
    ++calls.products_backward;
    return inner.linear_backward(x, weight, dy);
  };
  p.attention = [inner, &calls](const at::Tensor& qkv, const Microbatch& batch, const AttentionShape& shape) {
    ++calls.attention;
    return inner.attention(qkv, batch, shape);
  };
  p.local = [inner, &calls](const std::string& function, const at::Tensor& x, const Weight* weight,
                            const AttentionShape& shape, double eps) {
    ++calls.local;
    return inner.local(function, x, weight, shape, eps);
  };
  return p;
}

Calls calls_of(const Recomputation& recompute, const TinyOptions& options = {}) {
  const Architecture a = tiny_architecture(options);
  Weights weights(parameter_table(a), at::kFloat);
  weights.initialize(7);
  Calls calls;
  const Transformer model(a, weights, counting(fused_primitives(), calls), {.recompute = recompute, .seed = 5});
  torch::autograd::backward({model.forward(random_batch(a, 2, 8, 1))}, {});
  return calls;
}

// The model has 2 blocks, and one norm before the output layer.
TEST(Recomputation, RunsTheOperationsOfTheRangesAgainAndNoLastProduct) {
  const Calls kept{.norms = 5, .products = 8, .products_backward = 0, .attention = 2, .local = 2};
  EXPECT_EQ(calls_of({}), kept);
  EXPECT_EQ(calls_of({.names = {"norms"}}), (Calls{9, 8, 4, 2, 2}));
  EXPECT_EQ(calls_of({.names = {"attention"}}), (Calls{5, 8, 2, 4, 2}));
  EXPECT_EQ(calls_of({.names = {"swiglu"}}), (Calls{5, 8, 2, 2, 4}));
  EXPECT_EQ(calls_of({.names = {"mlp"}}), (Calls{5, 10, 2, 2, 4}));
  EXPECT_EQ(calls_of({.names = {"norms", "mlp"}}), (Calls{9, 10, 4, 2, 4}));
  EXPECT_EQ(calls_of({.names = {"norms", "swiglu"}}), (Calls{9, 8, 6, 2, 4}));
  EXPECT_EQ(calls_of({.names = {kWholeBlock}}), (Calls{9, 14, 2, 4, 4})) << "3 of 4 products run again";
  EXPECT_EQ(calls_of({.names = {kWholeBlock}, .layers = 2}), (Calls{7, 11, 1, 3, 3})) << "in one of the blocks";
  EXPECT_EQ(calls_of({.names = {kWholeBlock}, .layers = 3}), kept);
  EXPECT_EQ(calls_of({.names = {"attention"}}, {.qk_norm = true}), (Calls{5, 8, 2, 4, 6}));
}

// The counts of every set are those of repeated_operations(), from which plans count FLOPs and messages.
TEST(Recomputation, RunsTheOperationsThatPlansCount) {
  const std::vector<Operation> block = block_operations(tiny_architecture());
  const Calls kept = calls_of({});
  for (const Recomputation& recompute : all_recomputations()) {
    Calls want = kept;
    for (const Operation& operation : recompute.repeated(block)) {
      if (operation.kind == OperationKind::norm) want.norms += 2;
      if (operation.kind == OperationKind::linear) want.products += 2;
      if (operation.kind == OperationKind::attention) want.attention += 2;
      if (operation.kind == OperationKind::local) want.local += 2;
    }
    want.products_backward = 2 * static_cast<int>(recompute.ranges(block).size());
    EXPECT_EQ(calls_of(recompute), want) << join(recompute.names, " ");
  }
}

// If autograd is off, each operation runs once.
TEST(Recomputation, HasNoEffectWithoutBackward) {
  const Architecture a = tiny_architecture();
  Weights weights(parameter_table(a), at::kFloat);
  weights.initialize(7);
  Calls calls;
  const Transformer model(a, weights, counting(fused_primitives(), calls), {.recompute = {{kWholeBlock}}});
  {
    const at::NoGradGuard no_grad;
    model.forward(random_batch(a, 2, 8, 1));
  }
  EXPECT_EQ(calls, calls_of({}));
}

// The plain primitives, which autograd differentiates, agree too.
TEST(Recomputation, OfPlainPrimitivesChangesNoBit) {
  const Architecture a = tiny_architecture({.dropout = 0.3, .biases = true, .qk_norm = true});
  const auto gradients = [&](const Recomputation& recompute) {
    Weights weights(parameter_table(a), at::kDouble);
    weights.initialize(7);
    const Transformer model(a, weights, plain_primitives(), {.recompute = recompute, .seed = 5});
    torch::autograd::backward({model.forward(random_batch(a, 2, 8, 1))}, {});
    return weights.gradients().clone();
  };
  const at::Tensor kept = gradients({});
  for (const Recomputation& recompute : all_recomputations(2)) {
    EXPECT_TRUE(gradients(recompute).equal(kept)) << join(recompute.names, " ");
  }
}

}  // namespace
}  // namespace orthant::recompute_test

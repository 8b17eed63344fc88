// A model with Linformer's attention: loss and gradients of the fused core equal those of plain ATen and autograd on
// one device. The negative controls are full attention and unmasked padding.
#include "model/linformer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "model/transformer.h"
#include "tests/support/tiny_model.h"

namespace orthant::linformer_test {
namespace {

Architecture with_summaries(int64_t kv_heads, int64_t tokens) {
  Architecture a = tiny_architecture({.kv_heads = kv_heads});
  a.objective = "masked";
  a.linformer_length = 5;
  a.linformer_tokens = tokens;
  return a;
}

at::Tensor gradients(const Architecture& a, const Primitives& primitives, at::ScalarType dtype,
                     const Recomputation& recompute, int times) {
  Weights weights(parameter_table(a), dtype);
  weights.initialize(7);
  const Transformer model(a, weights, primitives, {.recompute = recompute, .seed = 5});
  for (int i = 0; i < times; ++i) {
    torch::autograd::backward({model.forward(random_batch(a, 3, a.linformer_tokens, 1 + static_cast<uint64_t>(i)))},
                              {});
  }
  return weights.gradients().clone();
}

Primitives fused() { return fused_primitives(); }

// Gradients agree within 1e-12 for any number of key heads, accumulated over two microbatches.
TEST(LinformerModel, FusedEqualsPlain) {
  for (const int64_t kv_heads : {1, 2, 4}) {
    const Architecture a = with_summaries(kv_heads, 17);
    const at::Tensor plain = gradients(a, plain_primitives(), at::kDouble, {}, 2);
    EXPECT_LT(((gradients(a, fused(), at::kDouble, {}, 2) - plain).norm() / plain.norm()).item<double>(), 1e-12);
    // Without the Linformer projections, the model has another number of parameters.
    Architecture full = a;
    full.linformer_length = 0;
    EXPECT_NE(gradients(full, plain_primitives(), at::kDouble, {}, 2).numel(), plain.numel());
  }
}

// The loss does not depend on the padding tokens. Without the lengths (the control), it does.
TEST(LinformerModel, PaddingGoesIntoNoSummary) {
  const Architecture a = with_summaries(2, 16);
  const auto loss_of = [&](const Primitives& primitives, bool padded, int64_t token_behind) {
    Weights weights(parameter_table(a), at::kDouble);
    weights.initialize(7);
    Microbatch batch = random_batch(a, 2, 16, 1);
    batch.labels_BT.narrow(1, 10, 6).fill_(-100);
    batch.tokens_BT.narrow(1, 10, 6).fill_(token_behind);
    if (padded) batch.packing = std::make_shared<Packing>(Packing{.document_starts = {}, .lengths = {10, 10}});
    return Transformer(a, weights, primitives, {}).forward(batch).item<double>();
  };
  EXPECT_EQ(loss_of(fused(), true, 1), loss_of(fused(), true, 2));
  EXPECT_NEAR(loss_of(fused(), true, 1), loss_of(plain_primitives(), true, 2), 1e-12);
  EXPECT_GT(std::abs(loss_of(fused(), false, 1) - loss_of(fused(), false, 2)), 1e-6) << "the control";
}

TEST(LinformerModel, RecomputationChangesNoBit) {
  const Architecture a = with_summaries(2, 16);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor kept = gradients(a, fused(), dtype, {}, 2);
    for (const Recomputation& recompute : {Recomputation{{kWholeBlock}}, Recomputation{{"attention"}}}) {
      EXPECT_TRUE(gradients(a, fused(), dtype, recompute, 2).equal(kept)) << recompute.names[0];
    }
  }
}

// Initial projections [tokens, length] have variance 1 / length, and differ between keys, values and layers.
TEST(LinformerModel, ProjectionsStartFromTheirGlobalIndices) {
  const Architecture a = with_summaries(2, 400);
  Weights weights(parameter_table(a), at::kDouble);
  weights.initialize(7);
  const at::Tensor e = weights["model.layers.0.self_attn.linformer_k"].value.detach();
  EXPECT_EQ(e.sizes(), at::IntArrayRef({400, 5}));
  EXPECT_NEAR(e.square().mean().item<double>(), 1.0 / 5, 0.02);  // 2000 draws: one standard deviation is 0.0063
  EXPECT_FALSE(e.equal(weights["model.layers.0.self_attn.linformer_v"].value.detach()));
  EXPECT_FALSE(e.equal(weights["model.layers.1.self_attn.linformer_k"].value.detach()));
}

}  // namespace
}  // namespace orthant::linformer_test

// One model with fused and with plain primitives: the loss and all gradients agree. The plain primitives, which are
// ATen operators under autograd, are the oracle; the controls leave out an option of the loss.
#include "model/transformer.h"

#include "base/errors.h"
#include "base/labels.h"
#include "model/dropout.h"
#include "model/local_operations.h"
#include "base/text.h"
#include "tests/support/biases.h"
#include "tests/support/recomputations.h"
#include "tests/support/relative_error.h"
#include "tests/support/tiny_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace orthant::transformer_test {
namespace {

struct Result {
  double loss = 0;
  at::Tensor gradients;
};

Result run(const Architecture& a, const Primitives& primitives, const Microbatch& batch, at::ScalarType dtype,
           Transformer::Options options = {}, int times = 1) {
  Weights weights(parameter_table(a), dtype);
  weights.initialize(7);
  draw_biases(weights);
  Transformer model(a, weights, primitives, options);
  weights.begin_gradients();
  Result result;
  for (int i = 0; i < times; ++i) {
    const at::Tensor loss = model.forward(batch);
    torch::autograd::backward({loss}, {});
    result.loss += loss.item<double>();
  }
  weights.finish_gradients();
  result.gradients = weights.gradients().clone();
  return result;
}

// Softcapping, label smoothing and z-loss, separately and together. A cap of 3 bends even the small logits of this
// model.
struct LossCase {
  double softcap = 0, smoothing = 0, z_loss = 0;
};
const std::vector<LossCase> kLosses = {{30, 0, 0}, {3, 0, 0}, {0, 0.1, 0}, {0, 0, 1e-3}, {3, 0.1, 0}, {3, 0.1, 1e-3}};
Architecture capped(Architecture a, const LossCase& loss) {
  a.final_logit_softcapping = loss.softcap;
  return a;
}
Transformer::Options options_of(const LossCase& loss) {
  return {.seed = 5, .label_smoothing = loss.smoothing, .z_loss = loss.z_loss};
}

// The definition of GELU with the error function, and its approximation by a tanh. The two differ by up to 4.7e-4, so
// an error of 1e-4 tells them apart; rounding in float64 stays below 1e-14.
TEST(LocalOperations, GeluEqualsItsDefinition) {
  const at::Tensor x = at::linspace(-6, 6, 2001, at::kDouble).view({1, 1, -1});
  const at::Tensor exact = x / 2 * at::erfc(-x / std::sqrt(2.0));
  const at::Tensor approximate = x / 2 * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))));
  const auto error = [&](const char* function, const at::Tensor& want) {
    return (plain_local(function, x, nullptr, {}, 0) - want).abs().max().item<double>();
  };
  EXPECT_LT(error("gelu", exact), 1e-14);
  EXPECT_LT(error("gelu_tanh", approximate), 1e-14);
  EXPECT_GT(error("gelu_tanh", exact), 1e-4);
  EXPECT_GT(error("gelu", approximate), 1e-4);
}

class Architectures : public ::testing::TestWithParam<Architecture> {};

// In float64, loss and gradients agree within 1e-12.
TEST_P(Architectures, FusedEqualsPlainInFloat64) {
  const Architecture& a = GetParam();
  const Microbatch batch = random_batch(a, 3, 17, 1);
  const Result plain = run(a, plain_primitives(), batch, at::kDouble, {.seed = 5});
  const Result fused = run(a, fused_primitives(), batch, at::kDouble, {.seed = 5});
  EXPECT_NEAR(fused.loss, plain.loss, 1e-12 * std::abs(plain.loss));
  EXPECT_LT(relative_error(fused.gradients, plain.gradients), 1e-12);
}

// Loss and gradients with each recomputation have the bits of a model that recomputes nothing.
void expect_same_bits(const Architecture& a, const std::vector<Recomputation>& recomputations) {
  const Microbatch batch = random_batch(a, 2, 16, 1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Result kept = run(a, fused_primitives(), batch, dtype, {.seed = 5}, 2);
    for (const Recomputation& recompute : recomputations) {
      const Result again = run(a, fused_primitives(), batch, dtype, {.recompute = recompute, .seed = 5}, 2);
      EXPECT_EQ(kept.loss, again.loss) << join(recompute.names, " ");
      EXPECT_TRUE(kept.gradients.equal(again.gradients)) << join(recompute.names, " ");
    }
  }
}

TEST_P(Architectures, RecomputationChangesNoBit) {
  expect_same_bits(GetParam(), {{{kWholeBlock}}, {{"norms", "attention", "mlp"}}, {{"norms", "swiglu"}, 2}});
}

TEST(Transformer, NoSetOfRecomputedOperationsChangesABit) {
  expect_same_bits(tiny_architecture({.dropout = 0.3, .biases = true, .qk_norm = true}), all_recomputations());
}

INSTANTIATE_TEST_SUITE_P(All, Architectures,
                         ::testing::Values(tiny_architecture(), tiny_architecture({.tied = true}),
                                           tiny_architecture({.kv_heads = 4}), tiny_architecture({.kv_heads = 1}),
                                           tiny_architecture({.llama3 = true}), tiny_architecture({.dropout = 0.3}),
                                           tiny_architecture({.biases = true}), tiny_architecture({.qk_norm = true}),
                                           tiny_architecture({.kv_heads = 1, .biases = true, .qk_norm = true}),
                                           tiny_architecture({.mlp = "gelu"}),
                                           tiny_architecture({.norm = "layer_norm"}),
                                           tiny_architecture({.dropout = 0.3, .positions = "learned"}),
                                           tiny_architecture({.biases = true,
                                                              .mlp = "gelu_tanh",
                                                              .norm = "layer_norm"})));

TEST(Transformer, ChunkedLossEqualsPlain) {
  // The batch must have more rows than one chunk of the loss, or the test proves nothing. A chunk has at least 512
  // rows, which only a vocabulary of more than 16,384 reaches.
  Architecture a = tiny_architecture();
  a.vocab_size = 20011;
  const Microbatch batch = random_batch(a, 9, 64, 3);
  ASSERT_GT(batch.tokens_BT.numel(), loss_chunk_rows(a.vocab_size, false));
  const Result plain = run(a, plain_primitives(), batch, at::kDouble);
  const Result fused = run(a, fused_primitives(), batch, at::kDouble);
  EXPECT_NEAR(fused.loss, plain.loss, 1e-12 * std::abs(plain.loss));
  EXPECT_LT(relative_error(fused.gradients, plain.gradients), 1e-12);
}

TEST(Transformer, LossesEqualPlain) {
  for (const LossCase& loss : kLosses) {
    const Architecture a = capped(tiny_architecture(), loss);
    const Microbatch batch = random_batch(a, 3, 17, 1);
    const Result plain = run(a, plain_primitives(), batch, at::kDouble, options_of(loss));
    const Result fused = run(a, fused_primitives(), batch, at::kDouble, options_of(loss));
    EXPECT_NEAR(fused.loss, plain.loss, 1e-12 * std::abs(plain.loss));
    EXPECT_LT(relative_error(fused.gradients, plain.gradients), 1e-12);
    const Result other = run(tiny_architecture(), fused_primitives(), batch, at::kDouble);
    EXPECT_GT(relative_error(other.gradients, plain.gradients), kSeenInAGradient) << "the option left out";
  }
}

// Outside training (step 0), the loss is the plain cross entropy, without smoothing and z-loss. Softcapping remains,
// because it belongs to the model; generation uses the same capped logits.
TEST(Transformer, ValidationLossIsCrossEntropy) {
  for (const LossCase& loss : kLosses) {
    const Architecture a = capped(tiny_architecture(), loss);
    Weights weights(parameter_table(a), at::kDouble);
    weights.initialize(7);
    const Transformer model(a, weights, fused_primitives(), options_of(loss));
    Microbatch batch = random_batch(a, 3, 17, 1);
    batch.step = 0;
    const at::NoGradGuard no_grad;
    const at::Tensor logits = model.logits(batch), labels = batch.labels_BT.flatten();
    const at::Tensor want = at::cross_entropy_loss(logits, labels.masked_select(labels.ne(kIgnoredLabel)), {},
                                                   at::Reduction::Sum) *
                            batch.loss_scale;
    EXPECT_LT(relative_error(model.forward(batch), want), 1e-12);
    const double cap = loss.softcap > 0 ? loss.softcap : INFINITY;
    EXPECT_LT(logits.abs().max().item<double>(), cap);
  }
}

// The gradient equals the difference quotient of the loss along a random direction, with all options of the loss.
TEST(Transformer, GradientIsTheSlopeOfTheLoss) {
  const LossCase loss{.softcap = 3, .smoothing = 0.1, .z_loss = 1e-3};
  const Architecture a = capped(tiny_architecture({.tied = true, .biases = true}), loss);
  const Microbatch batch = random_batch(a, 2, 9, 4);
  Weights weights(parameter_table(a), at::kDouble);
  weights.initialize(3);
  draw_biases(weights);
  Transformer model(a, weights, fused_primitives(), options_of(loss));
  weights.begin_gradients();
  torch::autograd::backward({model.forward(batch)}, {});
  at::NoGradGuard no_grad;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{5});
  const at::Tensor direction = at::randn(weights.masters().sizes(), generator, weights.masters().options());
  const at::Tensor start = weights.masters().clone();
  const auto loss_at = [&](double steps_away) {
    weights.masters().copy_(start).add_(direction, steps_away);
    return model.forward(batch).item<double>();
  };
  // The difference quotient is of fourth order. The length of the direction is the root of the number of weights, so
  // the error of a plain central difference would be of the order of the bound.
  const double h = 1e-5;
  const double difference = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
  const double slope = (weights.gradients() * direction).sum().item<double>();
  EXPECT_NEAR(difference, slope, 1e-8 * std::abs(slope));
}

TEST(Transformer, LabelOutsideTheVocabularyIsAnError) {
  const Architecture a = tiny_architecture();
  Microbatch batch = random_batch(a, 1, 8, 1);
  batch.labels_BT[0][3] = a.vocab_size;
  EXPECT_THROW(run(a, fused_primitives(), batch, at::kFloat), DataError);
}

// If all labels are ignored, the loss and all gradients are exactly zero.
TEST(Transformer, IgnoredLabelsCarryNothing) {
  for (const LossCase& loss : {LossCase{}, kLosses.back()}) {
    const Architecture a = capped(tiny_architecture(), loss);
    Microbatch batch = random_batch(a, 2, 8, 1);
    batch.labels_BT.fill_(-100);
    const Result result = run(a, fused_primitives(), batch, at::kFloat, options_of(loss));
    EXPECT_EQ(result.loss, 0.0);
    EXPECT_EQ(result.gradients.abs().max().item<float>(), 0.0f);
  }
}

TEST(Transformer, DropoutDependsOnSampleAndStepOnly) {
  // Two sequences in one batch give the loss of the same two in batches of one. Dropout masks follow the global sample
  // number, not the index in the batch. The control is another step.
  const Architecture a = tiny_architecture({.dropout = 0.5});
  const Microbatch both = random_batch(a, 2, 12, 6);
  Microbatch first = both, second = both;
  for (auto [part, i] : {std::pair{&first, 0}, std::pair{&second, 1}}) {
    for (at::Tensor Microbatch::*field : {&Microbatch::tokens_BT, &Microbatch::labels_BT, &Microbatch::positions_BT,
                                          &Microbatch::samples_B}) {
      part->*field = (both.*field).narrow(0, i, 1).contiguous();
    }
  }
  const auto p = fused_primitives();
  const double together = run(a, p, both, at::kDouble, {.seed = 9}).loss;
  const double apart =
      run(a, p, first, at::kDouble, {.seed = 9}).loss + run(a, p, second, at::kDouble, {.seed = 9}).loss;
  EXPECT_NEAR(together, apart, 1e-13 * std::abs(together));
  Microbatch later = both;
  later.step = both.step + 1;
  EXPECT_GT(std::abs(run(a, p, later, at::kDouble, {.seed = 9}).loss - together), 1e-6);
}

TEST(Transformer, DropoutFollowsSequencePositions) {
  // If a rank holds the same tokens in another order, the mask follows their positions in the sequence. Rotary
  // positions, which restart in each document, have no influence.
  const at::Tensor x = at::ones({2, 12, 24}, at::kDouble);
  Microbatch batch = random_batch(tiny_architecture(), 2, 12, 1);
  const DropoutKey key{0.5, 9, 4};
  const at::Tensor straight = apply_dropout_mask(x, batch, key);
  Microbatch moved = batch;
  moved.sequence_positions_T = at::tensor({6, 7, 8, 0, 1, 2, 11, 9, 10, 5, 4, 3}, at::kLong);
  moved.positions_BT = at::zeros_like(batch.positions_BT);
  EXPECT_TRUE(apply_dropout_mask(x, moved, key).equal(straight.index_select(1, moved.sequence_positions_T)));
  EXPECT_FALSE(apply_dropout_mask(x, batch, key).equal(straight.index_select(1, moved.sequence_positions_T)));
}

TEST(Transformer, NothingIsDroppedOutsideTraining) {
  const Architecture a = tiny_architecture({.dropout = 0.5}), dry = tiny_architecture();
  Microbatch batch = random_batch(a, 2, 12, 6);
  const auto p = fused_primitives();
  EXPECT_NE(run(a, p, batch, at::kDouble).loss, run(dry, p, batch, at::kDouble).loss);
  batch.step = 0;
  EXPECT_EQ(run(a, p, batch, at::kDouble).loss, run(dry, p, batch, at::kDouble).loss);
}

// Initial weights depend on the name of the parameter and the seed, not on the number of layers.
TEST(Weights, InitializationIsByNameAndSeed) {
  const Architecture a = tiny_architecture();
  Architecture deeper = a;
  deeper.num_hidden_layers = 1;
  Weights one(parameter_table(a), at::kFloat), two(parameter_table(deeper), at::kFloat);
  one.initialize(5);
  two.initialize(5);
  EXPECT_TRUE(one["model.layers.0.mlp.gate_up_proj"].value.equal(two["model.layers.0.mlp.gate_up_proj"].value));
  two.initialize(6);
  EXPECT_FALSE(one["model.layers.0.mlp.gate_up_proj"].value.equal(two["model.layers.0.mlp.gate_up_proj"].value));
}

// Biases follow their matrices, start at zero and have the names of Hugging Face's Llama. Attention has four, the MLP
// three.
TEST(Weights, BiasesFollowTheirMatricesAndStartAtZero) {
  for (const auto& [attention, mlp] : {std::pair{true, false}, {false, true}, {true, true}}) {
    Architecture a = tiny_architecture();
    a.attention_bias = attention;
    a.mlp_bias = mlp;
    Weights weights(parameter_table(a), at::kFloat);
    weights.initialize(5);
    std::vector<std::string> biases;
    for (size_t p = 0; p < weights.parameters().size(); ++p) {
      const ParameterInfo& info = weights.parameters()[p];
      if (!info.is_bias()) continue;
      EXPECT_EQ(weights.master(p).abs().max().item<float>(), 0.0f) << info.name;
      if (info.layer == 1) biases.push_back(info.name);
    }
    std::vector<std::string> want;
    for (const char* name : {"q", "k", "v", "o"})
      if (attention) want.push_back(fmt::format("model.layers.1.self_attn.{}_proj.bias", name));
    for (const char* name : {"gate", "up", "down"})
      if (mlp) want.push_back(fmt::format("model.layers.1.mlp.{}_proj.bias", name));
    EXPECT_EQ(biases, want);
    EXPECT_EQ(num_parameters(a) - num_parameters(tiny_architecture()),
              2 * ((attention ? 24 + 12 + 12 + 24 : 0) + (mlp ? 40 + 40 + 24 : 0)));
    for (const char* name : {"self_attn.qkv_proj", "self_attn.o_proj.weight", "mlp.gate_up_proj",
                             "mlp.down_proj.weight"}) {
      const std::string whole = std::string("model.layers.0.") + name;
      const bool has_one = name[0] == 's' ? attention : mlp;
      ASSERT_EQ(weights[whole].bias != nullptr, has_one) << name;
      if (!has_one) continue;
      EXPECT_EQ(weights[whole].bias->value.size(0), weights[whole].value.size(0)) << name;
    }
    EXPECT_EQ(weights["model.embed_tokens.weight"].bias, nullptr);
    EXPECT_EQ(weights["lm_head.weight"].bias, nullptr);
  }
}

// A sliding window counts the pairs of the mask, and one as long as the sequence none less.
TEST(TrainingFlops, CountThePairsOfTheWindow) {
  const auto flops = [](const std::string& objective, int64_t window) {
    Architecture a = tiny_architecture();
    a.objective = objective, a.sliding_window = window;
    return training_flops_per_token(a, 1024);
  };
  Architecture none = tiny_architecture();
  const auto q = static_cast<double>(none.num_hidden_layers * none.num_attention_heads * none.head_dim);
  const double pairs = (1024.0 * 1024 - 768.0 * 768) / 2 / 1024;  // a token sees at most 256, the first ones fewer
  EXPECT_NEAR(flops("causal", 0) - flops("causal", 256), 12 * q * (512 - pairs), 1e-6);
  EXPECT_EQ(flops("causal", 1024), flops("causal", 0));
  EXPECT_NEAR(flops("masked", 0) - flops("masked", 256), 24 * q * (512 - pairs), 1e-6);
}

}  // namespace
}  // namespace orthant::transformer_test

// AdamW over the flat buffers equals a plain AdamW for each parameter. By default only matrices decay. The gradient
// norm and the clipping factor equal their formulas.
#include "model/optimizer.h"

#include "tests/support/biases.h"
#include "tests/support/plain_adamw.h"
#include "tests/support/relative_error.h"
#include "tests/support/tiny_model.h"

#include <gtest/gtest.h>

namespace orthant::optimizer_test {
namespace {

void randomize_gradients(Weights& weights, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  weights.gradients().zero_();  // operators leave zeros in the gaps of the flat buffer
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    weights.gradient(p).copy_(at::randn(weights.parameters()[p].shape, generator, at::kDouble));
  }
}

TEST(Optimizer, IsAdamW) {
  for (const bool tied : {false, true}) {
    const auto parameters = parameter_table(tiny_architecture({.tied = tied}));
    // About ten roundings for each element and step, in four steps: 40 rounding units.
    for (const auto& [dtype, bound] : {std::pair{at::kDouble, 40 * 0x1p-53}, std::pair{at::kFloat, 40 * 0x1p-24}}) {
      Weights ours(parameters, dtype), plain(parameters, dtype);
      ours.initialize(3);
      plain.initialize(3);
      const OptimizerConfig options{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3};
      Optimizer optimizer(ours, options);
      PlainAdamW oracle{.config = options, .m = {}, .v = {}};
      for (int64_t step = 1; step <= 4; ++step) {
        randomize_gradients(ours, 10 + static_cast<uint64_t>(step));
        randomize_gradients(plain, 10 + static_cast<uint64_t>(step));
        optimizer.step(step, 0.01 * static_cast<double>(step), 0.7);
        oracle.step(plain, step, 0.01 * static_cast<double>(step), 0.7);
      }
      for (size_t p = 0; p < parameters.size(); ++p) {
        EXPECT_LT(relative_error(ours.master(p), plain.master(p)), bound) << parameters[p].name;
        EXPECT_LT(relative_error(ours.view(optimizer.state()[0].flat, p), oracle.m[p]), bound) << parameters[p].name;
        EXPECT_LT(relative_error(ours.view(optimizer.state()[1].flat, p), oracle.v[p]), bound) << parameters[p].name;
      }
    }
  }
}

TEST(Optimizer, GainsAndBiasesDecayOnlyWithAll) {
  const auto parameters = parameter_table(tiny_architecture({.biases = true}));
  for (const std::string decays : {"matrices", "all"}) {
    Weights weights(parameters, at::kDouble);
    weights.initialize(3);
    draw_biases(weights);
    const at::Tensor before = weights.masters().clone();
    Optimizer optimizer(weights, {.weight_decay = 0.5, .weight_decay_on = decays});
    weights.gradients().zero_();
    optimizer.step(1, 0.1, 1.0);
    int unchanged = 0;
    for (size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor was = weights.view(before, p);
      if (decays == "matrices" && parameters[p].shape.size() == 1) {
        ++unchanged;
        EXPECT_TRUE(weights.master(p).equal(was)) << parameters[p].name;
      } else {
        EXPECT_LT(relative_error(weights.master(p), was * 0.95), 1e-15) << parameters[p].name;
      }
    }
    // 2 gains and 7 biases in each of 2 blocks, and the final gain.
    EXPECT_EQ(unchanged, decays == "matrices" ? 5 + 14 : 0);
  }
}

// After each step, the bfloat16 working values equal the float32 master weights, rounded.
TEST(Optimizer, WorkingCopyIsTheMasterRounded) {
  Weights weights(parameter_table(tiny_architecture()), at::kBFloat16);
  weights.initialize(3);
  EXPECT_EQ(weights.masters().scalar_type(), at::kFloat);
  Optimizer optimizer(weights, {});
  for (int64_t step = 1; step <= 3; ++step) {
    randomize_gradients(weights, static_cast<uint64_t>(step));
    const at::Tensor before = weights.masters().clone();
    optimizer.step(step, 1e-5, 1.0);  // below the precision of bfloat16: the master weights still move
    EXPECT_FALSE(weights.masters().equal(before));
    EXPECT_TRUE(weights.values().equal(weights.masters().to(at::kBFloat16)));
  }
}

TEST(Optimizer, GapsOfTheFlatBufferStayZero) {
  Weights weights(parameter_table(tiny_architecture()), at::kFloat);
  weights.initialize(3);
  Optimizer optimizer(weights, {});
  randomize_gradients(weights, 1);
  optimizer.step(1, 0.1, 1.0);
  at::Tensor gaps = weights.masters().clone();
  int64_t held = 0;
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    weights.view(gaps, p).zero_();
    held += weights.parameters()[p].size();
  }
  EXPECT_LT(held, gaps.numel()) << "without a gap this shows nothing";
  EXPECT_EQ(gaps.abs().max().item<float>(), 0.0f);
}

TEST(Clipping, NormAndFactor) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    Weights weights(parameter_table(tiny_architecture()), dtype);
    randomize_gradients(weights, 5);
    for (const size_t parameter : {0, 1, 5}) {
      const double expected = weights.gradient(parameter).to(at::kDouble).norm().item<double>();
      EXPECT_NEAR(std::sqrt(sum_gradient_squares(weights, parameter)), expected, 1e-13 * expected);
    }
  }
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_NEAR(clip_factor(4.0, 1.0), 0.25, 1e-6);
  EXPECT_EQ(clip_factor(4.0, 0.0), 1.0);  // 0 switches clipping off
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace orthant::optimizer_test

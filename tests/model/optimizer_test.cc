// The optimizers over the flat buffers equal plain ones for each parameter, and those of torch.optim. By default only
// matrices decay. The gradient norm and the clipping factor equal their formulas.
#include "model/optimizer.h"

#include "tests/support/biases.h"
#include "tests/support/plain_optimizer.h"
#include "tests/support/relative_error.h"
#include "tests/support/tiny_model.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace orthant::optimizer_test {
namespace {

void randomize_gradients(Weights& weights, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  weights.gradients().zero_();  // operators leave zeros in the gaps of the flat buffer
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    weights.gradient(p).copy_(at::randn(weights.parameters()[p].shape, generator, at::kDouble));
  }
}

// AdamW, SGD, SGD without momentum, and Muon.
std::vector<OptimizerConfig> every_optimizer() {
  return {{.name = "adamw", .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3},
          {.name = "sgd", .momentum = 0.8, .weight_decay = 0.3},
          {.name = "sgd", .momentum = 0, .weight_decay = 0.3},
          {.name = "muon", .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .momentum = 0.8, .weight_decay = 0.3}};
}

TEST(Optimizer, IsItsFormula) {
  for (const OptimizerConfig& config : every_optimizer()) {
    const auto parameters = parameter_table(tiny_architecture());
    // About ten roundings for each element and step, in four steps: 40 rounding units. Each of Muon's five iterations
    // multiplies the smallest singular values, and their rounding errors, by at most 3.4445, and has three products of
    // up to 40 terms, whose errors add up like a random walk.
    const double units = config.name == "muon" ? 40 + 4 * 3 * std::sqrt(40.0) * std::pow(3.4445, 5) : 40;
    for (const auto& [dtype, bound] :
         {std::pair{at::kDouble, units * 0x1p-53}, std::pair{at::kFloat, units * 0x1p-24}}) {
      Weights ours(parameters, dtype), plain(parameters, dtype);
      ours.initialize(3);
      plain.initialize(3);
      Optimizer optimizer(ours, config);
      PlainOptimizer oracle{.config = config};
      for (int64_t step = 1; step <= 4; ++step) {
        randomize_gradients(ours, 10 + static_cast<uint64_t>(step));
        randomize_gradients(plain, 10 + static_cast<uint64_t>(step));
        optimizer.step(step, 0.01 * static_cast<double>(step), at::scalar_tensor(0.7, at::kDouble));
        oracle.step(plain, step, 0.01 * static_cast<double>(step), 0.7);
      }
      for (size_t p = 0; p < parameters.size(); ++p) {
        EXPECT_LT(relative_error(ours.master(p), plain.master(p)), bound) << parameters[p].name;
        size_t s = 0;
        for (const Optimizer::State& state : optimizer.state()) {
          if (!state.has(parameters[p])) continue;
          EXPECT_LT(relative_error(state.part(p), oracle.state[p].at(s++).flatten()), bound)
              << parameters[p].name << ", " << state.name;
        }
        EXPECT_EQ(s, oracle.state[p].size()) << parameters[p].name;
      }
    }
  }
}

// tests/golden/optimizers/torch.txt has the weights after each step. The control has another momentum, or beta1.
TEST(Optimizer, IsThatOfTorch) {
  std::ifstream file(ORTHANT_SOURCE_DIR "/tests/golden/optimizers/torch.txt");
  std::unique_ptr<Weights> weights[2];
  std::unique_ptr<Optimizer> optimizers[2];
  int lines = 0;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    std::istringstream in(line);
    OptimizerConfig config{.beta1 = 0.8, .beta2 = 0.9, .eps = 1e-6, .weight_decay_on = "all"};
    int64_t step = 0;
    std::string shape_text;
    in >> config.name >> shape_text >> config.momentum >> config.weight_decay >> step;
    const at::Tensor want = at::empty({6}, at::kDouble);
    for (int i = 0; i < 6; ++i) in >> want.mutable_data_ptr<double>()[i];
    const at::Tensor index = at::arange(6, at::kDouble);
    std::vector<int64_t> shape = {6};
    if (shape_text != "6") shape = {shape_text[0] - '0', shape_text[2] - '0'};
    const ParameterRole role = shape.size() > 1 ? ParameterRole::from_stream : ParameterRole::gain;
    for (const int control : {0, 1}) {
      if (step == 1) {
        if (control == 1) config.momentum += 0.01, config.beta1 += 0.01;
        weights[control] = std::make_unique<Weights>(
            std::vector<ParameterInfo>{{.name = "w", .shape = shape, .role = role}}, at::kDouble);
        weights[control]->master(0).copy_(index.cos().view(shape));
        optimizers[control] = std::make_unique<Optimizer>(*weights[control], config);
      }
      weights[control]->gradient(0).copy_((2 * index + static_cast<double>(step)).sin().view(shape));
      optimizers[control]->step(step, 0.01 * static_cast<double>(step), at::ones({}, at::kDouble));
      const double error = relative_error(weights[control]->master(0).flatten(), want);
      if (control == 0) {
        EXPECT_LT(error, config.name == "muon" ? 1e-13 : 1e-15) << line;
      } else if (step == 4) {
        EXPECT_GT(error, 1e-5) << line;
      }
    }
    ++lines;
  }
  EXPECT_EQ(lines, 24);
}

// The view of a parameter in a flat buffer.
at::Tensor shard_in(const at::Tensor& flat, const Weights& weights, size_t parameter) {
  const ParameterInfo& info = weights.parameters()[parameter];
  return flat.narrow(0, weights.flat().parameter_offsets[parameter], info.size()).view(info.shape);
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
    optimizer.step(1, 0.1, at::ones({}, at::kDouble));
    int unchanged = 0;
    for (size_t p = 0; p < parameters.size(); ++p) {
      const at::Tensor was = shard_in(before, weights, p);
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
  for (const OptimizerConfig& config : every_optimizer()) {
    Weights weights(parameter_table(tiny_architecture()), at::kBFloat16);
    weights.initialize(3);
    EXPECT_EQ(weights.masters().scalar_type(), at::kFloat);
    Optimizer optimizer(weights, config);
    for (int64_t step = 1; step <= 3; ++step) {
      randomize_gradients(weights, static_cast<uint64_t>(step));
      const at::Tensor before = weights.masters().clone();
      // Below the precision of bfloat16: the master weights still move.
      optimizer.step(step, 1e-5, at::ones({}, at::kDouble));
      EXPECT_FALSE(weights.masters().equal(before));
      EXPECT_TRUE(weights.values().equal(weights.masters().to(at::kBFloat16)));
    }
  }
}

TEST(Optimizer, GapsOfTheFlatBufferStayZero) {
  Weights weights(parameter_table(tiny_architecture()), at::kFloat);
  weights.initialize(3);
  Optimizer optimizer(weights, {.name = "sgd", .weight_decay_on = "all"});
  randomize_gradients(weights, 1);
  optimizer.step(1, 0.1, at::ones({}, at::kDouble));
  at::Tensor gaps = weights.masters().clone();
  int64_t held = 0;
  for (size_t p = 0; p < weights.parameters().size(); ++p) {
    shard_in(gaps, weights, p).zero_();
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
      SquaresSum squares;
      add_gradient_squares(weights, parameter, 0, weights.gradient(parameter).numel(), squares);
      EXPECT_NEAR(std::sqrt(squares.total().value()), expected, 1e-13 * expected);
    }
  }
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_NEAR(clip_factor(4.0, 1.0), 0.25, 1e-6);
  EXPECT_EQ(clip_factor(4.0, 0.0), 1.0);  // 0 switches clipping off
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
}

}  // namespace
}  // namespace orthant::optimizer_test

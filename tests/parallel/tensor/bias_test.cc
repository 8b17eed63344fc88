// Linear layers with a bias on every mesh: the output and the gradients of input, weight and bias equal one device's
// bits in every dtype, because the matrices are integers. The controls add the bias twice and sum its gradient twice.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>

#include "parallel/tensor/layers.h"
#include "parallel/tensor/volume_plan.h"
#include "tests/parallel/tensor/matrices.h"
#include "tests/support/sweep.h"

namespace orthant::bias_test {
namespace {

struct LinearCase {
  TensorPlan plan;
  Stationary stationary = Stationary::output;
};
std::string name_of(const LinearCase& c) {
  const char* streams[] = {"width", "tokens", "uncut"};
  return fmt::format("{} x {} x {}, {}{}, {} stays, panels of {} bytes", c.plan.rows, c.plan.columns, c.plan.depth,
                     streams[static_cast<int>(c.plan.stream)], c.plan.form == ProductForm::summa ? ", summa" : "",
                     c.stationary == Stationary::output ? "output" : "input", c.plan.panel_bytes);
}

std::vector<LinearCase> all_cases() {
  std::vector<LinearCase> all;
  for (const int64_t bytes : {int64_t{1}, TensorPlan{}.panel_bytes}) {
    for (const auto& [r, c, d] : std::vector<std::array<int, 3>>{
             {2, 2, 1}, {2, 2, 2}, {3, 3, 1}, {3, 3, 2}, {4, 4, 1}, {2, 2, 3}, {2, 2, 4}, {2, 3, 2},
             {3, 2, 1}, {1, 4, 2}, {4, 1, 2}, {1, 1, 4}, {6, 2, 1}, {5, 3, 1}}) {
      const TensorPlan plan{.rows = r, .columns = c, .depth = d, .panel_bytes = bytes};
      all.push_back({plan, Stationary::output});
      all.push_back({plan, Stationary::input});
      if (bytes == 1) continue;
      all.push_back({plan, Stationary::output});
      all.back().plan.form = ProductForm::summa;
    }
    for (const auto stream : {StreamSharding::tokens, StreamSharding::none}) {
      for (const int columns : {2, 4}) {
        const TensorPlan plan{.columns = columns, .stream = stream, .panel_bytes = bytes};
        for (const auto stationary : {Stationary::output, Stationary::input}) all.push_back({plan, stationary});
      }
    }
  }
  return all;
}

at::Tensor of_column(const Comm& comm, const at::Tensor& whole, int64_t dim) {
  const Range part = shard(whole.size(dim), comm.group_size(kColumns), comm.position(kColumns));
  return whole.narrow(dim, part.begin, part.size()).contiguous();
}

// This rank's shard of the layer's input or output [T, K]. `stream` says whether the matrix is the residual stream or
// the activations between two layers.
at::Tensor part(const Comm& comm, const LinearCase& c, const at::Tensor& whole_TK, bool stream) {
  constexpr int64_t kSequences = 6;  // columns may shard the tokens of each
  const Range tokens = shard(whole_TK.size(0), comm.group_size(kTokens), comm.position(kTokens));
  const at::Tensor own = whole_TK.narrow(0, tokens.begin, tokens.size());
  const at::Tensor all = own.view({c.plan.stream == StreamSharding::tokens ? kSequences : 1, -1, own.size(1)});
  if (!stream || c.plan.stream == StreamSharding::width) return of_column(comm, all, 2);
  return c.plan.stream == StreamSharding::tokens ? of_column(comm, all, 1) : all;
}

struct Layer {
  at::Tensor y, dx, dw, db;
};

// Runs the same microbatch twice, so that gradients accumulate. The gradient of the bias is then summed `sums` times
// over the axes of the plan's reductions; only 1 is right.
Layer run_layer(Comm& comm, const LinearCase& c, const Matrices& m, const at::Tensor& bias_N, int sums = 1) {
  const TensorMesh mesh(comm, c.plan);
  const bool output = c.stationary == Stationary::output;
  const bool bias_cut = output || c.plan.stream == StreamSharding::width;
  const auto of_sums = m.x_TK.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto weight_of = [&](const at::Tensor& value) {
    return Weight{.value = value.clone().set_requires_grad(true), .gradient = at::full_like(value, 7, of_sums)};
  };
  const Weight bias = weight_of(bias_cut ? of_column(comm, bias_N, 0) : bias_N);
  const at::Tensor w_NK = m.w_KN.t();
  Weight weight = weight_of(output ? part_of(comm, w_NK, kColumns, kRows) : part_of(comm, w_NK, kRows, kColumns));
  weight.bias = &bias;
  Layer layer;
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    const at::Tensor x = part(comm, c, m.x_TK, output).clone().set_requires_grad(true);
    layer.y = tensor_linear(mesh, x, weight, {.out = w_NK.size(0), .in = w_NK.size(1), .stationary = c.stationary});
    torch::autograd::backward({layer.y}, {part(comm, c, m.dy_TN, !output)});
    layer.dx = x.grad();
  }
  layer.dw = weight.gradient;
  layer.db = bias.gradient;
  Axes tokens = kTokens;
  if (!bias_cut && c.plan.stream == StreamSharding::tokens) tokens.emplace_back(kColumn);
  comm.all_reduce(layer.dw, kDepths).wait();
  for (int i = 0; i < sums; ++i) comm.all_reduce(layer.db, tokens).wait();
  return layer;
}

// The names of those of y, dx, dw and db that differ from one device's on this rank.
std::string wrong(Comm& comm, const LinearCase& c, const Layer& have, const Matrices& m, const at::Tensor& bias_N) {
  const bool output = c.stationary == Stationary::output;
  const auto exact = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const at::Tensor dw = 2 * exact(m.dy_TN).t().mm(exact(m.x_TK)), db = 2 * exact(m.dy_TN).sum(0);
  const at::Tensor db_here = output || c.plan.stream == StreamSharding::width ? of_column(comm, db, 0) : db;
  std::string names;
  const auto look = [&](const char* name, const at::Tensor& is, const at::Tensor& should_be) {
    if (!exact(is).equal(exact(should_be))) names += name;
  };
  look("y", have.y, part(comm, c, exact(m.x_TK).mm(exact(m.w_KN)) + exact(bias_N), !output));
  look("dx", have.dx, part(comm, c, exact(m.dy_TN).mm(exact(m.w_KN).t()), output));
  look("dw", have.dw, output ? part_of(comm, dw, kColumns, kRows) : part_of(comm, dw, kRows, kColumns));
  look("db", have.db, db_here);
  return names;
}

// Matrices whose output gradients have nonzero sums over the tokens, so that errors in the bias' gradient show.
Matrices matrices_of(int64_t T, int64_t K, int64_t N, at::ScalarType type) {
  Matrices m = exact_matrices(T, K, N, type);
  m.dy_TN = integers(T, N, 1, 2, 5, 1).to(type);
  return m;
}
at::Tensor exact_bias(int64_t N, at::ScalarType type) { return integers(N, 1, 4, 0, 9, 4).flatten().to(type); }

SWEEP_TEST(TensorBias, LayersAreBitEqualToOneDevices) {
  for (const LinearCase& c : sweep.of(all_cases(), 25)) {
    const bool divides = c.plan.panel_bytes > 1 && c.plan.form == ProductForm::stationary;
    const int64_t T = 48, K = divides ? 12 : 13, N = divides ? 24 : 22;
    on_mesh(tensor_mesh(c.plan.rows, c.plan.columns, c.plan.depth), [&](Comm& comm) {
      for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
        const Matrices m = matrices_of(T, K, N, type);
        const at::Tensor bias = exact_bias(N, type);
        EXPECT_EQ(wrong(comm, c, run_layer(comm, c, m, bias), m, bias), "") << name_of(c) << ", " << type;
      }
    });
  }
}

// The controls: a bias that is added once more, as if every column added it, and a bias gradient that is summed twice.
TEST(TensorBias, IsAddedOnceAndItsGradientSummedOnce) {
  const Matrices m = matrices_of(48, 12, 24, at::kDouble);
  const at::Tensor bias = exact_bias(24, at::kDouble);
  for (const auto stream : {StreamSharding::width, StreamSharding::tokens, StreamSharding::none}) {
    const LinearCase c{{.columns = 2, .stream = stream}, Stationary::input};
    std::atomic<int> seen = 0;
    on_mesh(tensor_mesh(1, 2, 1), [&](Comm& comm) {
      Layer layer = run_layer(comm, c, m, bias);
      layer.y = layer.y + (stream == StreamSharding::width ? of_column(comm, bias, 0) : bias);
      seen += wrong(comm, c, layer, m, bias) == "y";
    });
    EXPECT_EQ(seen, 2) << name_of(c);
  }
  for (const LinearCase& c : {LinearCase{{.rows = 2, .columns = 2}},
                              {{.rows = 1, .columns = 2, .depth = 2}},
                              {{.columns = 4, .stream = StreamSharding::tokens}, Stationary::input}}) {
    std::atomic<int> seen = 0;
    on_mesh(tensor_mesh(c.plan.rows, c.plan.columns, c.plan.depth),
            [&](Comm& comm) { seen += wrong(comm, c, run_layer(comm, c, m, bias, 2), m, bias) == "db"; });
    EXPECT_EQ(seen, 4) << name_of(c);
  }
}

}  // namespace
}  // namespace orthant::bias_test

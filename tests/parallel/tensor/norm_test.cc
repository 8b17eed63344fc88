// Norms over a width that columns shard equal those of one device. The layer norm keeps its digits for inputs far from
// zero, where the control, a mean of squares minus a squared mean, cancels.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <mutex>

#include "model/norms.h"
#include "model/weights.h"
#include "parallel/tensor/layers.h"
#include "tests/parallel/tensor/matrices.h"
#include "tests/support/reference_values.h"

namespace orthant::norm_test {
namespace {

constexpr double kEps = 1e-5;
constexpr ParameterRole kBias = ParameterRole::norm_bias;

at::Tensor columns_of(const TensorMesh& mesh, const at::Tensor& whole) {
  const Range mine = mesh.channels(whole.size(-1));
  return whole.narrow(-1, mine.begin, mine.size()).contiguous();
}

// A row of the specification, with a mean of 4096 and a variance of 0.62483.
at::Tensor far_row() {
  const at::Tensor a = at::arange(1024, at::kDouble);
  return 4096 + (1.7 * a).sin() + 0.5 * (0.3 * a).cos();
}

TEST(TensorNorm, KeepsItsDigitsFarFromZero) {
  const at::Tensor row = far_row();
  const double variance = row.var(at::OptionalIntArrayRef(), 0).item<double>();
  constexpr double kVariance = 0.62483;
  EXPECT_NEAR(variance, kVariance, 0.5e-5) << "to the reference's last digit";
  const at::Tensor want = (row - row.mean()) / std::sqrt(variance + kEps);
  on_mesh(tensor_mesh(1, 4, 1), [&](Comm& comm) {
    const TensorMesh mesh(comm, {.columns = 4});
    const at::Tensor x = columns_of(mesh, row.view({1, 1, 1024})).to(at::kFloat);
    Weights weights({{.name = "gain", .shape = {256}}, {.name = "bias", .shape = {256}, .role = kBias}}, at::kFloat);
    weights.initialize(1);  // ones and zeros
    const at::Tensor y = tensor_add_norm(mesh, "layer_norm", x, {}, weights["gain"], kEps, 1024).first;
    const at::Tensor off = y.to(at::kDouble) - columns_of(mesh, want.view({1, 1, 1024}));
    EXPECT_LT(off.abs().max().item<double>(), 2 * 4096 * 0x1p-24 / std::sqrt(variance)) << "the input's own rounding";
  });
  // The control: E[x^2] - E[x]^2 in float32 has no correct digit. Both terms are near 2^24, where float32 has only
  // whole numbers.
  const at::Tensor narrow = row.to(at::kFloat);
  const float naive = narrow.square().mean().item<float>() - narrow.mean().square().item<float>();
  EXPECT_EQ(naive, std::round(naive));
  EXPECT_GE(std::abs(naive - variance), 1 - kVariance - 0.5e-5) << "the nearest whole number is 1";
}

// The norms of the model, with a residual, equal the plain ones: outputs and gradients.
TEST(TensorNorm, EqualsOneRanks) {
  const at::Tensor x = reference_values({2, 5, 26}, 1), residual = reference_values({2, 5, 26}, 5);
  const at::Tensor dy = reference_values({2, 5, 26}, 2), ds = reference_values({2, 5, 26}, 6);
  const auto run = [&](const std::function<at::Tensor(const at::Tensor&)>& part, int64_t width, const auto& norm) {
    Weights weights({{.name = "gain", .shape = {width}}, {.name = "bias", .shape = {width}, .role = kBias}},
                    at::kDouble);
    weights.master(0).copy_(part(reference_values({26}, 3)));
    weights.master(1).copy_(part(reference_values({26}, 4)));
    weights.begin_gradients();
    const at::Tensor own = part(x).set_requires_grad(true), other = part(residual).set_requires_grad(true);
    const auto [y, s] = norm(own, other, weights["gain"]);
    torch::autograd::backward({y, s}, {part(dy), part(ds)});
    weights.finish_gradients();
    return std::vector<at::Tensor>{y.detach(),    s.detach(),          own.grad(),
                                   other.grad(), weights.gradient(0).clone(), weights.gradient(1).clone()};
  };
  const auto all = [](const at::Tensor& t) { return t.clone(); };
  for (const std::string function : {"rms_norm", "layer_norm"}) {
    const auto want = run(all, 26, [&](const auto& a, const auto& b, const Weight& gain) {
      return plain_add_norm(function, a, b, gain, kEps);
    });
    const auto fused = run(all, 26, [&](const auto& a, const auto& b, const Weight& gain) {
      return fused_add_norm(function, a, b, gain, kEps);
    });
    for (size_t i = 0; i < want.size(); ++i) EXPECT_LE((fused[i] - want[i]).norm().item<double>(), 1e-12) << i;
    for (const int columns : {1, 2, 4, 5}) {
      on_mesh(tensor_mesh(1, columns, 1), [&](Comm& comm) {
        const TensorMesh mesh(comm, {.columns = columns});
        const auto part = [&](const at::Tensor& t) { return columns_of(mesh, t); };
        const auto have = run(part, mesh.channels(26).size(), [&](const auto& a, const auto& b, const Weight& gain) {
          return tensor_add_norm(mesh, function, a, b, gain, kEps, 26);
        });
        for (size_t i = 0; i < have.size(); ++i) {
          const at::Tensor share = part(want[i]);
          EXPECT_LE((have[i] - share).norm().item<double>(), 1e-12 * (1 + share.norm().item<double>()))
              << function << ", " << columns << " columns, " << i;
        }
      });
    }
  }
}

}  // namespace
}  // namespace orthant::norm_test

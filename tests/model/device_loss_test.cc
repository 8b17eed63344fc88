// The loss and the sum of squares on GPUs, and by ATen's operators, are those of the CPU's kernels. The Gpu tests need
// a CUDA device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/labels.h"
#include "tests/model/device_kernels.h"

namespace orthant::device_kernels {
namespace {

constexpr OutputLoss kLosses[] = {
    {}, {.softcap = 5}, {.smoothing = 0.1}, {.z_weight = 0.01}, {.softcap = 3, .smoothing = 0.2, .z_weight = 0.02}};

void check_losses(const Backend& place) {
  constexpr int64_t kRows = 6;
  for (const at::ScalarType type : kTypes) {
    for (const OutputLoss& loss : kLosses) {
      for (const int64_t vocab : {2, 31, 1024, 5000}) {
        const at::Tensor logits = 3 * random({kRows, vocab}, type), labels = at::randint(0, vocab, {kRows}, at::kLong);
        labels[2] = kIgnoredLabel;
        const std::string what = fmt::format("loss over {} with cap {}, smoothing {}, z-loss {}", vocab, loss.softcap,
                                             loss.smoothing, loss.z_weight);
        const double tolerance = type == at::kBFloat16 ? 0.02 : 20 * tolerance_of(type);
        expect_equal(place, {logits, labels, at::zeros({kRows}, at::kDouble)}, tolerance, what,
                     [&](const Backend& at, const Tensors& t) {
                       by_element(logits, [&]<class T>(T) {
                         RUN(at, softmax_cross_entropy,
                             SoftmaxCrossEntropy<T>{.logits = out<T>(t[0]),
                                                    .labels = in<int64_t>(t[1]),
                                                    .rows = kRows,
                                                    .vocab = vocab,
                                                    .scale = 0.25,
                                                    .losses = out<double>(t[2]),
                                                    .loss = loss});
                       });
                     });
        // A shard of twice as large a vocabulary; half of the labels are in the other shard.
        const at::Tensor of_all = at::randint(0, 2 * vocab, {kRows}, at::kLong);
        of_all[1] = kIgnoredLabel;
        expect_equal(place, {logits, of_all, at::zeros({kRows, 4}, at::kDouble)}, tolerance, what + ", one shard",
                     [&](const Backend& at, const Tensors& t) {
                       by_element(logits, [&]<class T>(T) {
                         const SoftmaxShard<T> args{.logits = out<T>(t[0]),
                                                    .labels = in<int64_t>(t[1]),
                                                    .rows = kRows,
                                                    .vocab = vocab,
                                                    .first = vocab,
                                                    .statistics = out<SoftmaxStatistics>(t[2]),
                                                    .scale = 0.25,
                                                    .loss = loss,
                                                    .vocabulary = 2 * vocab};
                         RUN(at, softmax_statistics, args);
                         RUN(at, softmax_gradient, args);
                       });
                     });
        const at::Tensor products = 3 * random({kRows, vocab}, wide(type)), kept = at::zeros({kRows, vocab}, type);
        expect_equal(
            place, {products, of_all, kept, kept, at::zeros({kRows, 4}, at::kDouble), at::zeros({kRows}, at::kDouble)},
            tolerance, what + ", exponentials", [&](const Backend& at, const Tensors& t) {
              by_element(kept, [&]<class T>(T) {
                RUN(at, softmax_exponentials,
                    SoftmaxExponentials<T>{.logits = in<Wide<T>>(t[0]),
                                           .exponentials = out<T>(t[2]),
                                           .slopes = loss.softcap > 0 ? out<T>(t[3]) : nullptr,
                                           .labels = in<int64_t>(t[1]),
                                           .rows = kRows,
                                           .vocab = vocab,
                                           .first = vocab,
                                           .has_maximum = false,
                                           .statistics = out<SoftmaxStatistics>(t[4]),
                                           .label_slopes = loss.softcap > 0 ? out<double>(t[5]) : nullptr,
                                           .loss = loss});
              });
            });
      }
    }
  }
}

TEST(AtenKernels, Losses) {
  at::manual_seed(1);
  check_losses({.device = at::kCPU, .aten = true});
}

TEST(AtenKernels, SumOfSquares) {
  const at::Tensor x = random({1000}, at::kFloat);
  ExactSum sum;
  aten_kernels::add_squares(x, sum);
  const double want = x.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(sum.value(), want, 1e-13 * want);
}

TEST(KernelsGpu, Losses) {
  REQUIRE_GPU();
  at::manual_seed(1);
  for (const Backend& gpu : kOnGpu) check_losses(gpu);
}

TEST(KernelsGpu, SumOfSquaresHasOneValueForEveryOrder) {
  REQUIRE_GPU();
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    // Numbers of very different sizes, in blocks that are added one at a time, in two orders.
    const at::Tensor x = (at::randn({40 * kNormBlockElements + 17}, at::kDouble) *
                          at::pow(10.0, at::randint(-15, 15, {40 * kNormBlockElements + 17}, at::kDouble)))
                             .to(type)
                             .to(at::kCUDA);
    SquaresSum at_once, by_parts;
    at_once.add(x);
    constexpr int64_t kPart = 8 * kNormBlockElements;
    for (int64_t part = 5; part >= 0; --part) {
      if (part * kPart < x.numel()) by_parts.add(x.narrow(0, part * kPart, std::min(kPart, x.numel() - part * kPart)));
    }
    EXPECT_EQ(at_once.total().value(), by_parts.total().value());
    const double want = x.cpu().to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(at_once.total().value(), want, 1e-13 * want);
  }
  SquaresSum of_nan;
  of_nan.add(at::full({1}, std::nan(""), at::kFloat).to(at::kCUDA));
  EXPECT_FALSE(std::isfinite(of_nan.total().value()));
}

}  // namespace
}  // namespace orthant::device_kernels

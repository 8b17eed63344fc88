// The loss and the sum of squares on GPUs, and by ATen's operators, are those of the CPU's kernels. The Gpu tests need
// a CUDA device.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/labels.h"
#include "tests/model/device_kernels.h"

namespace orthant::device_kernels {
namespace {

constexpr OutputLoss kLosses[] = {
    {}, {.softcap = 5}, {.smoothing = 0.1}, {.z_weight = 0.01}, {.softcap = 3, .smoothing = 0.2, .z_weight = 0.02}};

std::string name_of(const OutputLoss& loss, int64_t vocab) {
  return fmt::format("loss over {} with cap {}, smoothing {}, z-loss {}", vocab, loss.softcap, loss.smoothing,
                     loss.z_weight);
}

double loss_tolerance(at::ScalarType type) { return type == at::kBFloat16 ? 0.02 : 20 * tolerance_of(type); }

void check_losses(const Backend& place) {
  constexpr int64_t kRows = 6;
  for (const at::ScalarType type : kTypes) {
    for (const OutputLoss& loss : kLosses) {
      for (const int64_t vocab : {2, 31, 1024, 5000}) {
        const at::Tensor logits = 3 * random({kRows, vocab}, type), labels = at::randint(0, vocab, {kRows}, at::kLong);
        labels[2] = kIgnoredLabel;
        for (const bool write_gradient : {true, false}) {
          expect_equal(place, {logits, labels, at::zeros({kRows}, at::kDouble)}, loss_tolerance(type),
                       name_of(loss, vocab), [&](const Backend& at, const Tensors& t) {
                         by_element(logits, [&]<class T>(T) {
                           RUN(at, softmax_cross_entropy,
                               SoftmaxCrossEntropy<T>{.logits = out<T>(t[0]),
                                                      .labels = in<int64_t>(t[1]),
                                                      .rows = kRows,
                                                      .vocab = vocab,
                                                      .scale = 0.25,
                                                      .losses = out<double>(t[2]),
                                                      .write_gradient = write_gradient,
                                                      .loss = loss});
                         });
                       });
        }
      }
    }
  }
}

// Shards [vocab, 2 vocab) of a vocabulary of 3 vocab. Two thirds of the labels are in other shards. A shard may be
// empty, and its rows may begin at any address.
struct ShardCase {
  at::ScalarType type;
  OutputLoss loss;
  int64_t vocab, shift;
  at::Tensor labels;

  static constexpr int64_t kRows = 9;
  std::string name() const { return name_of(loss, vocab) + fmt::format(", a shard shifted by {}", shift); }
  // Room for [kRows, vocab] after `shift` elements.
  at::Tensor room(at::ScalarType of) const { return at::zeros({shift + kRows * vocab}, of); }
  at::Tensor rows(const at::Tensor& room) const { return room.narrow(0, shift, kRows * vocab).view({kRows, vocab}); }
  at::Tensor products(at::ScalarType of) const {
    const at::Tensor all = room(of);
    rows(all).copy_(3 * random({kRows, vocab}, of));
    if (vocab > 1) rows(all)[4][vocab / 2] = -INFINITY;
    return all;
  }
};

void check_shard(const Backend& place, const ShardCase& c, bool write_gradient) {
  const at::Tensor statistics = at::zeros({ShardCase::kRows, 4}, at::kDouble);
  const at::Tensor losses = at::zeros({ShardCase::kRows}, at::kDouble);
  expect_equal(place, {c.products(c.type), c.labels, statistics, losses}, loss_tolerance(c.type), c.name(),
               [&](const Backend& at, const Tensors& t) {
                 by_element(t[0], [&]<class T>(T) {
                   const SoftmaxShard<T> args{.logits = out<T>(t[0]) + c.shift,
                                              .labels = in<int64_t>(t[1]),
                                              .rows = ShardCase::kRows,
                                              .vocab = c.vocab,
                                              .first = c.vocab,
                                              .statistics = out<SoftmaxStatistics>(t[2]),
                                              .loss = c.loss,
                                              .vocabulary = 3 * c.vocab,
                                              .scale = 0.25,
                                              .losses = out<double>(t[3]),
                                              .write_gradient = write_gradient};
                   RUN(at, softmax_statistics, args);
                   RUN(at, softmax_loss, args);
                 });
               });
}

void check_exponentials(const Backend& place, const ShardCase& c, bool has_maximum, bool keeps) {
  const bool capped = c.loss.softcap > 0;
  const at::Tensor statistics = at::full({ShardCase::kRows, 4}, 9.5, at::kDouble);
  const at::Tensor label_slopes = at::zeros({ShardCase::kRows}, at::kDouble);
  expect_equal(place, {c.products(wide(c.type)), c.labels, c.room(c.type), c.room(c.type), statistics, label_slopes},
               loss_tolerance(c.type), c.name() + ", exponentials", [&](const Backend& at, const Tensors& t) {
                 by_element(t[2], [&]<class T>(T) {
                   RUN(at, softmax_exponentials,
                       SoftmaxExponentials<T>{.logits = in<Wide<T>>(t[0]) + c.shift,
                                              .exponentials = keeps ? out<T>(t[2]) + c.shift : nullptr,
                                              .slopes = keeps && capped ? out<T>(t[3]) + c.shift : nullptr,
                                              .labels = in<int64_t>(t[1]),
                                              .rows = ShardCase::kRows,
                                              .vocab = c.vocab,
                                              .first = c.vocab,
                                              .has_maximum = has_maximum,
                                              .statistics = out<SoftmaxStatistics>(t[4]),
                                              .label_slopes = capped ? out<double>(t[5]) : nullptr,
                                              .loss = c.loss});
                 });
               });
}

void check_shards(const Backend& place) {
  for (const at::ScalarType type : kTypes) {
    for (const OutputLoss& loss : kLosses) {
      for (const int64_t vocab : {0, 1, 31, 1024, 5000}) {
        for (const int64_t shift : {0, 1}) {
          const at::Tensor labels = at::randint(0, std::max<int64_t>(1, 3 * vocab), {ShardCase::kRows}, at::kLong);
          labels[1] = kIgnoredLabel;
          labels[2] = vocab;                         // the shard's first
          if (vocab > 0) labels[3] = 2 * vocab - 1;  // the shard's last
          const ShardCase c{type, loss, vocab, shift, labels};
          check_shard(place, c, true);
          check_shard(place, c, false);
          check_exponentials(place, c, false, true);
          check_exponentials(place, c, true, true);
          check_exponentials(place, c, false, false);
        }
      }
    }
  }
}

// Exponentials in the memory of the products, as OutputShard keeps them in float32 and float64.
void check_exponentials_in_place(const Backend& place) {
  constexpr int64_t kRows = 5;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int64_t vocab : {37, 4096}) {
      const at::Tensor labels = at::randint(0, 2 * vocab, {kRows}, at::kLong);
      expect_equal(place, {3 * random({kRows, vocab}, type), labels, at::zeros({kRows, 4}, at::kDouble)},
                   loss_tolerance(type), fmt::format("exponentials of {} in place", vocab),
                   [&](const Backend& at, const Tensors& t) {
                     by_element(t[0], [&]<class T>(T) {
                       if constexpr (std::is_same_v<T, Wide<T>>) {
                         RUN(at, softmax_exponentials,
                             SoftmaxExponentials<T>{.logits = in<T>(t[0]),
                                                    .exponentials = out<T>(t[0]),
                                                    .slopes = nullptr,
                                                    .labels = in<int64_t>(t[1]),
                                                    .rows = kRows,
                                                    .vocab = vocab,
                                                    .first = 0,
                                                    .has_maximum = false,
                                                    .statistics = out<SoftmaxStatistics>(t[2]),
                                                    .label_slopes = nullptr});
                       }
                     });
                   });
    }
  }
}

// A NaN among the logits makes the row's sum of exponentials, loss and gradient NaN, and no other row's.
void check_nan(const Backend& place) {
  constexpr int64_t kRows = 3, kVocab = 1031;
  for (const at::ScalarType type : kTypes) {
    const at::Tensor logits = random({kRows, kVocab}, type).to(place.device);
    logits[1][700] = std::nan("");
    const at::Tensor labels = at::full({kRows}, 5, at::kLong).to(place.device);
    const auto numbers = at::TensorOptions(place.device).dtype(at::kDouble);
    const at::Tensor statistics = at::zeros({kRows, 4}, numbers), losses = at::zeros({kRows}, numbers);
    by_element(logits, [&]<class T>(T) {
      const SoftmaxShard<T> args{.logits = out<T>(logits),
                                 .labels = in<int64_t>(labels),
                                 .rows = kRows,
                                 .vocab = kVocab,
                                 .first = 0,
                                 .statistics = out<SoftmaxStatistics>(statistics),
                                 .vocabulary = kVocab,
                                 .scale = 1,
                                 .losses = out<double>(losses)};
      RUN(place, softmax_statistics, args);
      RUN(place, softmax_loss, args);
    });
    for (int64_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(statistics[row][1].isnan().item<bool>(), row == 1);
      EXPECT_EQ(losses[row].isnan().item<bool>(), row == 1);
      EXPECT_EQ(logits[row].isnan().all().item<bool>(), row == 1);
      EXPECT_EQ(logits[row].isnan().any().item<bool>(), row == 1);
    }
  }
}

void check_all_losses(const Backend& place) {
  check_losses(place);
  check_shards(place);
  check_exponentials_in_place(place);
  check_nan(place);
}

TEST(AtenKernels, Losses) {
  at::manual_seed(1);
  check_all_losses({.device = at::kCPU, .aten = true});
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
  for (const Backend& gpu : kOnGpu) check_all_losses(gpu);
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
    const at::Tensor numbers = at::zeros({ExactSum::kNumbers}, at::TensorOptions(at::kCUDA).dtype(at::kDouble));
    at_once.write_numbers(numbers);
    const at::Tensor host = numbers.cpu();
    EXPECT_TRUE(
        std::ranges::equal(std::span(host.const_data_ptr<double>(), ExactSum::kNumbers), at_once.total().numbers()));
  }
  SquaresSum of_nan;
  of_nan.add(at::full({1}, std::nan(""), at::kFloat).to(at::kCUDA));
  EXPECT_FALSE(std::isfinite(of_nan.total().value()));
}

}  // namespace
}  // namespace orthant::device_kernels

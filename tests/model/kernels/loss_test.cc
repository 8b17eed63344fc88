#include "model/kernels/loss.h"

#include <algorithm>
#include <limits>

#include "tests/model/kernels/testing.h"

namespace orthant {
namespace {

template <class T>
struct Case {
  Case(int64_t row_count, int64_t vocab_size, double spread)
      : rows(row_count), vocab(vocab_size), logits(random_values<T>(rows * vocab, 1, spread)) {
    for (int64_t row = 0; row < rows; ++row) labels.push_back(row % 4 == 2 ? kIgnoredLabel : (row * 131 + 5) % vocab);
    losses.resize(static_cast<size_t>(rows), -1.0);
  }

  int64_t run(bool write_gradient = true) {
    return softmax_cross_entropy(SoftmaxCrossEntropy<T>{.logits = logits.data(),
                                                        .labels = labels.data(),
                                                        .rows = rows,
                                                        .vocab = vocab,
                                                        .scale = scale,
                                                        .losses = losses.data(),
                                                        .write_gradient = write_gradient});
  }

  int64_t rows, vocab;
  double scale = 0.037;
  std::vector<T> logits;
  std::vector<int64_t> labels;
  std::vector<double> losses;
};

struct Expected {
  std::vector<double> loss, loss_bound, gradient, gradient_bound;
};

/// An exponent t <= 0 is rounded once, so its exponential is off by |t| units and 2 of its own; a sum of at most 1024
/// terms adds 1024 units at the very most, the rest of the row is added in double. The gradient has two more roundings,
/// the one under the label a third, of a value up to the scale; then the store.
template <class T>
Expected expected_loss(const Case<T>& c) {
  const double u = unit<T>();
  Expected e;
  for (int64_t row = 0; row < c.rows; ++row) {
    const T* logits = c.logits.data() + row * c.vocab;
    const int64_t label = c.labels[row];
    double top = to_double(logits[0]), bottom = top, sum = 0;
    for (int64_t i = 0; i < c.vocab; ++i) {
      top = std::max(top, to_double(logits[i]));
      bottom = std::min(bottom, to_double(logits[i]));
    }
    for (int64_t i = 0; i < c.vocab; ++i) sum += std::exp(to_double(logits[i]) - top);
    const double relative = (top - bottom + 2 + static_cast<double>(std::min<int64_t>(c.vocab, 1024))) * u;
    const bool valid = label != kIgnoredLabel;
    e.loss.push_back(valid ? std::log(sum) + top - to_double(logits[label]) : 0.0);
    e.loss_bound.push_back(valid ? relative + 4 * 0x1p-53 * (std::abs(top) + e.loss.back() + 1) : 0.0);
    for (int64_t i = 0; i < c.vocab; ++i) {
      const double share = valid ? c.scale * std::exp(to_double(logits[i]) - top) / sum : 0.0;
      const double gradient = share - (i == label ? c.scale : 0.0);
      e.gradient.push_back(gradient);
      e.gradient_bound.push_back(share * (2 * relative + 3 * u) + (i == label ? 2 * u * c.scale : 0.0) +
                                 store_unit<T>() * std::abs(gradient) + (valid ? 1e-37 : 0.0));
    }
  }
  return e;
}

template <class T>
class Loss : public ::testing::Test {};
TYPED_TEST_SUITE(Loss, AllElements);

TYPED_TEST(Loss, LossAndGradientAreTheFormulaOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t vocab : {1, 2, 15, 64, 257, 3000}) {
      for (const double spread : {1.0, 30.0, 500.0}) {
        Case<T> c(6, vocab, spread);
        const Expected e = expected_loss(c);
        EXPECT_EQ(c.run(), -1);
        EXPECT_WITHIN(c.losses, e.loss, e.loss_bound);
        EXPECT_WITHIN(c.logits, e.gradient, e.gradient_bound);
        if (vocab < 64) continue;
        Case<T> mutated(6, vocab, spread);
        mutated.labels[1] = (mutated.labels[1] + 1) % vocab;  // a label off by one
        EXPECT_NOT_WITHIN(c.losses, expected_loss(mutated).loss, e.loss_bound);
        EXPECT_NOT_WITHIN(c.logits, expected_loss(mutated).gradient, e.gradient_bound);
        mutated = Case<T>(6, vocab, spread);
        mutated.scale *= 1.02;
        EXPECT_NOT_WITHIN(c.logits, expected_loss(mutated).gradient, e.gradient_bound);
      }
    }
  });
}

TYPED_TEST(Loss, WithoutGradientTheLogitsStay) {
  using T = TypeParam;
  Case<T> c(7, 300, 10.0), with_gradient = c;
  const auto before = c.logits;
  EXPECT_EQ(c.run(false), -1);
  EXPECT_TRUE(same_bits(before, c.logits));
  EXPECT_EQ(with_gradient.run(), -1);
  EXPECT_FALSE(same_bits(before, with_gradient.logits));
  EXPECT_TRUE(same_bits(c.losses, with_gradient.losses));
}

TYPED_TEST(Loss, BadLabelNamesItsRowAndNothingIsWritten) {
  using T = TypeParam;
  for (const int64_t bad : {int64_t{300}, int64_t{-1}, int64_t{-101}, std::numeric_limits<int64_t>::min()}) {
    Case<T> c(7, 300, 10.0);
    c.labels[3] = c.labels[5] = bad;
    const auto logits = c.logits;
    const auto losses = c.losses;
    EXPECT_EQ(c.run(), 3);
    EXPECT_TRUE(same_bits(logits, c.logits));
    EXPECT_TRUE(same_bits(losses, c.losses));
  }
}

TYPED_TEST(Loss, NotANumberShowsInItsRowOnly) {
  using T = TypeParam;
  for_each_target([] {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      for (const int64_t place : {0, 17, 99}) {
        Case<T> c(2, 100, 1.0), clean = c;
        c.logits[place] = round_to<T>(bad);
        EXPECT_EQ(c.run(), -1);
        EXPECT_EQ(clean.run(), -1);
        EXPECT_TRUE(std::isnan(c.losses[0]));
        EXPECT_TRUE(std::isnan(to_double(c.logits[place])));
        EXPECT_EQ(c.losses[1], clean.losses[1]);
      }
    }
    Case<T> masked(1, 100, 1.0);  // minus infinity is a legal mask
    masked.logits[7] = round_to<T>(-std::numeric_limits<double>::infinity());
    EXPECT_EQ(masked.run(), -1);
    EXPECT_TRUE(std::isfinite(masked.losses[0]));
    EXPECT_EQ(to_double(masked.logits[7]), 0.0);
  });
}

TYPED_TEST(Loss, ThreadsChangeNoBits) {
  using T = TypeParam;
  expect_same_for_any_threads([] {
    Case<T> c(33, 3001, 8.0);
    c.run();
    return c.logits;
  });
  expect_same_for_any_threads([] {
    Case<T> c(33, 3001, 8.0);
    c.run();
    return c.losses;
  });
}

}  // namespace
}  // namespace orthant

// Softmax cross entropy: losses and gradients equal their formulas in float64 on every SIMD target, with and without
// softcapping, label smoothing and z-loss. The controls are a label off by one, another scale and missing options.
#include "model/kernels/loss.h"

#include <algorithm>
#include <limits>

#include "tests/model/kernels/testing.h"

namespace orthant::loss_test {
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
                                                        .write_gradient = write_gradient,
                                                        .loss = options});
  }

  int64_t rows, vocab;
  double scale = 0.037;
  OutputLoss options = {};
  std::vector<T> logits;
  std::vector<int64_t> labels;
  std::vector<double> losses;
};

struct Expected {
  std::vector<double> loss, loss_bound, gradient, gradient_bound;
};

/// Bounds in units of rounding: an exponent t <= 0 is rounded once, so its exponential has an error of |t| + 2. A sum
/// of at most 1024 terms adds at most 1024; longer rows are added in double beyond that. The gradient has two more
/// roundings. The gradient at the label has a third one, of a value up to the scale. The store follows.
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

/// The same with all options. A capped logit has an error of 11 c units for its cap c: two roundings of tanh's argument
/// add less than one, tanh itself has 4 ulp, and the product and c are rounded. So an exponent has an error of 22 c
/// more. The slope 1 - t^2 has an error of 20 units. A sum of V logits is added in double beyond 1024 terms.
template <class T>
Expected expected_with_options(const Case<T>& c) {
  const auto& [cap, smoothing, weight] = c.options;
  const double u = unit<T>(), V = static_cast<double>(c.vocab);
  Expected e;
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<double> z, slope;
    for (int64_t i = 0; i < c.vocab; ++i) {
      const double y = to_double(c.logits[row * c.vocab + i]), t = cap > 0 ? std::tanh(y / cap) : 0;
      z.push_back(cap > 0 ? cap * t : y);
      slope.push_back(1 - t * t);
    }
    const auto [bottom, top] = std::minmax_element(z.begin(), z.end());
    double sum = 0, total = 0, size = 0;
    for (const double one : z) sum += std::exp(one - *top), total += one, size += std::abs(one);
    const double terms = static_cast<double>(std::min<int64_t>(c.vocab, 1024)), off = 11 * cap * u;
    const double relative = (*top - *bottom + 2 + terms) * u + 2 * off;
    const int64_t label = c.labels[row];
    const bool valid = label != kIgnoredLabel;
    const double lse = std::log(sum) + *top, steep = 1 + 2 * weight * lse;
    const double loss = valid ? lse - (1 - smoothing) * z[label] - smoothing * total / V + weight * lse * lse : 0;
    const double lse_bound = relative + off;
    e.loss.push_back(loss);
    e.loss_bound.push_back(valid ? lse_bound * (1 + 2 * weight * (std::abs(lse) + lse_bound)) + 2 * off +
                                       smoothing * terms * u * size / V + 16 * 0x1p-53 * (std::abs(*top) + loss + 1)
                                 : 0);
    for (int64_t i = 0; i < c.vocab; ++i) {
      const double share = std::exp(z[i] - *top) / sum * steep;
      const double taken = smoothing / V + (i == label ? 1 - smoothing : 0);
      const double gradient = valid ? c.scale * (share - taken) * slope[i] : 0;
      const double bend = cap > 0 ? 20 * u : 0;  // error of the slope
      const double share_bound = share * (2 * relative + 4 * u) + 2 * weight * lse_bound * share / steep;
      e.gradient.push_back(gradient);
      e.gradient_bound.push_back(valid ? c.scale * ((share_bound + 3 * u * taken) * slope[i] + (share + taken) * bend) +
                                             store_unit<T>() * std::abs(gradient) + 1e-37
                                       : 0);
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
        mutated.labels[1] = (mutated.labels[1] + 1) % vocab;  // the control: a label off by one
        EXPECT_NOT_WITHIN(c.losses, expected_loss(mutated).loss, e.loss_bound);
        EXPECT_NOT_WITHIN(c.logits, expected_loss(mutated).gradient, e.gradient_bound);
        mutated = Case<T>(6, vocab, spread);
        mutated.scale *= 1.02;
        EXPECT_NOT_WITHIN(c.logits, expected_loss(mutated).gradient, e.gradient_bound);
      }
    }
  });
}

TYPED_TEST(Loss, OptionsAreTheirFormulaOnEveryTarget) {
  using T = TypeParam;
  const std::vector<OutputLoss> all = {{.softcap = 30},
                                       {.softcap = 3},
                                       {.smoothing = 0.1},
                                       {.z_weight = 1e-3},
                                       {.smoothing = 1},
                                       {.softcap = 30, .smoothing = 0.1, .z_weight = 1e-3},
                                       {.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}};
  for_each_target([&] {
    for (const int64_t vocab : {1, 2, 15, 64, 257, 3000}) {
      for (const double spread : {1.0, 30.0, 500.0}) {
        for (const OutputLoss& options : all) {
          Case<T> c(6, vocab, spread);
          c.options = options;
          const Expected e = expected_with_options(c);
          Case<T> none = c;
          none.options = {};
          const Expected other = expected_loss(none);
          EXPECT_EQ(c.run(), -1);
          SCOPED_TRACE(::testing::Message() << vocab << " words, spread " << spread << ", cap " << options.softcap
                                            << ", smoothing " << options.smoothing << ", z " << options.z_weight);
          EXPECT_WITHIN(c.losses, e.loss, e.loss_bound);
          EXPECT_WITHIN(c.logits, e.gradient, e.gradient_bound);
          const bool shows = vocab >= 64 && spread == 30 && options.softcap < 30;  // an option left out shows
          if (!shows) continue;
          EXPECT_NOT_WITHIN(c.losses, other.loss, e.loss_bound);
          EXPECT_NOT_WITHIN(c.logits, other.gradient, e.gradient_bound);
        }
      }
    }
  });
}

// Shards of a vocabulary, one of them empty, give the losses and the gradient of the full vocabulary after their
// statistics are combined.
TYPED_TEST(Loss, OfShardsEqualsTheFullVocabulary) {
  using T = TypeParam;
  for (const OutputLoss& options : {OutputLoss{}, OutputLoss{.softcap = 3, .smoothing = 0.1, .z_weight = 1e-3}}) {
    Case<T> whole(9, 300, 5.0);
    whole.options = options;
    const Expected e = expected_with_options(whole);
    const std::vector<int64_t> ends = {0, 120, 120, 300};
    std::vector<std::vector<T>> parts;
    std::vector<SoftmaxStatistics> together(9, {-INFINITY, 0, 0, 0});
    std::vector<double> losses(9);
    const auto part = [&](size_t p, SoftmaxStatistics* statistics) {
      return SoftmaxShard<T>{.logits = parts[p].data(),
                             .labels = whole.labels.data(),
                             .rows = 9,
                             .vocab = ends[p + 1] - ends[p],
                             .first = ends[p],
                             .statistics = statistics,
                             .loss = options,
                             .vocabulary = 300,
                             .scale = whole.scale,
                             .losses = losses.data()};
    };
    for (size_t p = 0; p + 1 < ends.size(); ++p) {
      std::vector<T>& own = parts.emplace_back();
      for (int64_t row = 0; row < 9; ++row) {
        const auto begin = whole.logits.begin() + row * 300;
        own.insert(own.end(), begin + ends[p], begin + ends[p + 1]);
      }
      std::vector<SoftmaxStatistics> said(9);
      softmax_statistics(part(p, said.data()));
      for (size_t row = 0; row < 9; ++row) {
        SoftmaxStatistics& all = together[row];
        const double top = std::max(all.maximum, said[row].maximum);
        const auto at_top = [&](const SoftmaxStatistics& s) {
          return s.sum > 0 ? s.sum * std::exp(s.maximum - top) : 0;
        };
        all = {top, at_top(all) + at_top(said[row]), all.picked + said[row].picked, all.total + said[row].total};
      }
    }
    std::vector<T> gradient(whole.logits.size());
    for (size_t p = 0; p + 1 < ends.size(); ++p) {
      softmax_loss(part(p, together.data()));
      EXPECT_WITHIN(losses, e.loss, e.loss_bound);  // of every shard, even an empty one
      std::ranges::fill(losses, -1);
      const int64_t words = ends[p + 1] - ends[p];
      for (int64_t row = 0; row < 9; ++row) {
        std::copy_n(parts[p].begin() + row * words, words, gradient.begin() + row * 300 + ends[p]);
      }
    }
    EXPECT_WITHIN(gradient, e.gradient, e.gradient_bound);
  }
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

// A NaN or an infinity makes the loss of its own row NaN, and changes no bit of another row.
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
}  // namespace orthant::loss_test

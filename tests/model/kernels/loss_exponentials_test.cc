// The exponentials, slopes and statistics that a vocabulary shard keeps until the full softmax is known. They equal
// their formulas in float64 on every SIMD target; the controls use another cap or a label off by one.
#include <algorithm>
#include <limits>

#include "model/kernels/loss_exponentials.h"
#include "tests/model/kernels/testing.h"

namespace orthant::loss_exponentials_test {
namespace {

constexpr int64_t kRows = 5, kFirst = 100;  // labels: in the shard, not, in it, ignored, not in it

template <class T>
struct Part {
  std::vector<Wide<T>> logits;
  std::vector<int64_t> labels;
  std::vector<T> exponentials, slopes;
  std::vector<SoftmaxStatistics> statistics = std::vector<SoftmaxStatistics>(kRows);
  std::vector<double> label_slopes = std::vector<double>(kRows, 7.0);
  int64_t vocab;
  OutputLoss loss;

  Part(int64_t vocab_size, double spread, const OutputLoss& options)
      : logits(random_values<Wide<T>>(kRows * vocab_size, 3, spread)),
        labels{kFirst, kFirst - 1, kFirst + vocab_size - 1, kIgnoredLabel, kFirst + vocab_size},
        exponentials(logits.size()), slopes(logits.size()), vocab(vocab_size), loss(options) {}

  void run(bool has_maximum = false) {
    softmax_exponentials(SoftmaxExponentials<T>{.logits = logits.data(),
                                                .exponentials = exponentials.data(),
                                                .slopes = loss.softcap > 0 ? slopes.data() : nullptr,
                                                .labels = labels.data(),
                                                .rows = kRows,
                                                .vocab = vocab,
                                                .first = kFirst,
                                                .has_maximum = has_maximum,
                                                .statistics = statistics.data(),
                                                .label_slopes = loss.softcap > 0 ? label_slopes.data() : nullptr,
                                                .loss = loss});
  }
};

struct Numbers {
  std::vector<double> value, bound;
  void add(double one, double off) { value.push_back(one), bound.push_back(off); }
};

template <class T>
struct Expected {
  Numbers exponentials, slopes, maxima, sums, picked, totals, label_slopes;
};

// Bounds as in loss_test.cc, in units of rounding: an exponent t has an error of |t|, and of 22 c more with a cap c. A
// slope has an error of 20. `lifted` is the difference between the given maximum and the row's own.
template <class T>
Expected<T> expected(const Part<T>& p, double lifted = 0) {
  const double cap = p.loss.softcap, u = unit<T>(), off = 11 * cap * u, terms = std::min<double>(p.vocab, 1024);
  Expected<T> e;
  for (int64_t row = 0; row < kRows; ++row) {
    std::vector<double> z, slope;
    for (int64_t i = 0; i < p.vocab; ++i) {
      const double y = p.logits[row * p.vocab + i], t = cap > 0 ? std::tanh(y / cap) : 0;
      z.push_back(cap > 0 ? cap * t : y);
      slope.push_back(1 - t * t);
    }
    const auto [bottom, most] = std::minmax_element(z.begin(), z.end());
    const double top = *most + lifted, relative = (top - *bottom + 2) * u + 2 * off;
    const int64_t label = p.labels[row] - kFirst;
    const bool here = label >= 0 && label < p.vocab;
    double sum = 0, total = 0, size = 0;
    for (int64_t i = 0; i < p.vocab; ++i) {
      const double value = std::exp(z[i] - top);
      sum += value, total += z[i], size += std::abs(z[i]);
      const double kept = (p.labels[row] == kIgnoredLabel || i == label) ? 0 : value * slope[i];
      const double bend = cap > 0 && kept > 0 ? 20 * u * value : 0;
      e.exponentials.add(kept, kept * (2 * relative + 2 * u + store_unit<T>()) + bend + (kept > 0 ? 1e-37 : 0));
      const bool counts = p.labels[row] != kIgnoredLabel;
      if (cap > 0) e.slopes.add(counts ? slope[i] : 0, counts ? 20 * u + store_unit<T>() : 0);
    }
    e.maxima.add(top, off);
    e.sums.add(sum, sum * (2 * relative + terms * u) + 1e-37 * static_cast<double>(p.vocab));
    e.picked.add(here ? z[label] : 0, here ? off : 0);
    e.totals.add(p.loss.smoothing > 0 ? total : 0, terms * u * size + static_cast<double>(p.vocab) * off);
    if (cap > 0) e.label_slopes.add(here ? slope[label] : 1, here ? 20 * u : 0);
  }
  return e;
}

template <class T>
std::vector<double> said(const Part<T>& p, double SoftmaxStatistics::* number) {
  std::vector<double> all;
  for (const SoftmaxStatistics& one : p.statistics) all.push_back(one.*number);
  return all;
}

template <class T>
void expect_all(const Part<T>& p, const Expected<T>& e) {
  EXPECT_WITHIN(p.exponentials, e.exponentials.value, e.exponentials.bound);
  EXPECT_WITHIN(p.slopes, e.slopes.value, e.slopes.bound);
  EXPECT_WITHIN(said(p, &SoftmaxStatistics::maximum), e.maxima.value, e.maxima.bound);
  EXPECT_WITHIN(said(p, &SoftmaxStatistics::sum), e.sums.value, e.sums.bound);
  EXPECT_WITHIN(said(p, &SoftmaxStatistics::picked), e.picked.value, e.picked.bound);
  EXPECT_WITHIN(said(p, &SoftmaxStatistics::total), e.totals.value, e.totals.bound);
  EXPECT_WITHIN(p.label_slopes, e.label_slopes.value, e.label_slopes.bound);
}

template <class T>
class LossExponentials : public ::testing::Test {};
TYPED_TEST_SUITE(LossExponentials, AllElements);

TYPED_TEST(LossExponentials, AreTheFormulaOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t vocab : {1, 2, 15, 64, 257, 3000}) {
      for (const OutputLoss& options : {OutputLoss{}, OutputLoss{.smoothing = 0.1}, OutputLoss{.softcap = 30},
                                        OutputLoss{.softcap = 3, .smoothing = 0.1}}) {
        SCOPED_TRACE(::testing::Message() << vocab << " words, cap " << options.softcap);
        Part<T> p(vocab, 8.0, options);
        const Expected<T> e = expected(p);
        p.run();
        expect_all(p, e);
        if (vocab < 64) continue;
        Part<T> other = p;
        other.loss.softcap = options.softcap > 0 ? 0 : 30;
        const Expected<T> without = expected(other);
        EXPECT_NOT_WITHIN(p.exponentials, without.exponentials.value, e.exponentials.bound) << "another cap";
        other = p;
        other.labels[2] -= 1;
        const Expected<T> moved = expected(other);
        EXPECT_NOT_WITHIN(p.exponentials, moved.exponentials.value, e.exponentials.bound) << "a label off by one";
        EXPECT_NOT_WITHIN(said(p, &SoftmaxStatistics::picked), moved.picked.value, e.picked.bound);
      }
    }
  });
}

// With has_maximum, the exponentials use the maximum in the statistics instead of the row's own (the control).
TYPED_TEST(LossExponentials, UseTheGivenMaximum) {
  using T = TypeParam;
  Part<T> p(300, 8.0, {});
  const Expected<T> own = expected(p), e = expected(p, 2.5);
  for (int64_t row = 0; row < kRows; ++row) {
    p.statistics[static_cast<size_t>(row)].maximum = e.maxima.value[static_cast<size_t>(row)];
  }
  p.run(true);
  expect_all(p, e);
  EXPECT_NOT_WITHIN(p.exponentials, own.exponentials.value, own.exponentials.bound);
}

// The exponentials may overwrite the logits if both have the same type; no bit changes.
TYPED_TEST(LossExponentials, MayOverwriteTheLogits) {
  using T = TypeParam;
  if constexpr (std::is_same_v<T, Wide<T>>) {
    Part<T> apart(300, 8.0, {.softcap = 20, .smoothing = 0.1}), p = apart;
    apart.run();
    p.exponentials.swap(p.logits);
    softmax_exponentials(SoftmaxExponentials<T>{.logits = p.exponentials.data(),
                                                .exponentials = p.exponentials.data(),
                                                .slopes = p.slopes.data(),
                                                .labels = p.labels.data(),
                                                .rows = kRows,
                                                .vocab = p.vocab,
                                                .first = kFirst,
                                                .has_maximum = false,
                                                .statistics = p.statistics.data(),
                                                .label_slopes = p.label_slopes.data(),
                                                .loss = p.loss});
    EXPECT_TRUE(same_bits(p.exponentials, apart.exponentials));
    EXPECT_TRUE(same_bits(p.slopes, apart.slopes));
    EXPECT_TRUE(same_bits(said(p, &SoftmaxStatistics::total), said(apart, &SoftmaxStatistics::total)));
    EXPECT_TRUE(same_bits(said(p, &SoftmaxStatistics::picked), said(apart, &SoftmaxStatistics::picked)));
    EXPECT_TRUE(same_bits(p.label_slopes, apart.label_slopes));
  }
}

TYPED_TEST(LossExponentials, NotANumberShowsInItsRowOnly) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t place : {0, 17, 99}) {
      Part<T> p(100, 1.0, {}), clean = p;
      p.logits[static_cast<size_t>(place)] = std::numeric_limits<Wide<T>>::quiet_NaN();
      p.run(), clean.run();
      EXPECT_TRUE(std::isnan(p.statistics[0].sum));
      EXPECT_EQ(p.statistics[1].sum, clean.statistics[1].sum);
    }
  });
}

}  // namespace
}  // namespace orthant::loss_exponentials_test

// RMS norm, forward and backward, equals its formula in float64 on every SIMD target, within derived bounds. The
// controls use another eps, exchange the presence of dsum, or drop the gradient already accumulated in dgamma.
#include "model/kernels/norm.h"

#include "base/errors.h"
#include "tests/model/kernels/testing.h"

namespace orthant::norm_test {
namespace {

constexpr double kEps = 1e-5;

/// Inputs and outputs of one forward and one backward call. Every number of columns leaves a tail on some SIMD target.
template <class T>
struct Case {
  Case(int64_t row_count, int64_t col_count) : rows(row_count), cols(col_count) {
    x = random_values<T>(rows * cols, 1);
    residual = random_values<T>(rows * cols, 2, 2.0);
    gamma = random_values<T>(cols, 3);
    dy = random_values<T>(rows * cols, 4);
    dsum = random_values<T>(rows * cols, 5);
    sum.resize(x.size());
    y.resize(x.size());
    dx.resize(x.size());
    rstd.resize(static_cast<size_t>(rows));
    dgamma = random_values<Wide<T>>(cols, 6);
  }

  void forward(bool with_residual) {
    rms_norm_forward(RmsNormForward<T>{.x = x.data(),
                                       .residual = with_residual ? residual.data() : nullptr,
                                       .gamma = gamma.data(),
                                       .eps = kEps,
                                       .rows = rows,
                                       .cols = cols,
                                       .sum = with_residual ? sum.data() : nullptr,
                                       .y = y.data(),
                                       .rstd = rstd.data()});
  }

  void backward(bool with_dsum) {
    rms_norm_backward(RmsNormBackward<T>{.dy = dy.data(),
                                         .s = x.data(),
                                         .gamma = gamma.data(),
                                         .rstd = rstd.data(),
                                         .dsum = with_dsum ? dsum.data() : nullptr,
                                         .rows = rows,
                                         .cols = cols,
                                         .dx = dx.data(),
                                         .dgamma = dgamma.data()});
  }

  int64_t rows, cols;
  std::vector<T> x, residual, gamma, dy, dsum, sum, y, dx;
  std::vector<Wide<T>> rstd, dgamma;
};

template <class T>
std::vector<double> expected_y(const std::vector<T>& s, const Case<T>& c, double eps) {
  std::vector<double> y(s.size());
  for (int64_t row = 0; row < c.rows; ++row) {
    double squares = 0;
    for (int64_t i = row * c.cols; i < (row + 1) * c.cols; ++i) squares += to_double(s[i]) * to_double(s[i]);
    const double rstd = 1.0 / std::sqrt(squares / static_cast<double>(c.cols) + eps);
    for (int64_t i = 0; i < c.cols; ++i) {
      y[row * c.cols + i] = to_double(s[row * c.cols + i]) * rstd * to_double(c.gamma[i]);
    }
  }
  return y;
}

/// Bound in units of rounding: a sum of n squares has an error of at most n, and its inverse root of n/2 + 1. Two
/// products and the store follow.
template <class T>
std::vector<double> forward_bound(const std::vector<double>& y, int64_t cols) {
  std::vector<double> bound;
  const double relative = (static_cast<double>(cols) / 2 + 4) * unit<T>() + store_unit<T>();
  for (const double value : y) bound.push_back(std::abs(value) * relative + 1e-300);
  return bound;
}

struct Expected {
  std::vector<double> dx, dx_bound, dgamma, dgamma_bound;
};

/// The formulas of the kernel's header in double, and bounds. A sum of n terms has an error of n units of the sum of
/// their magnitudes.
template <class T>
Expected expected_backward(const Case<T>& c, const std::vector<Wide<T>>& dgamma_before, bool with_dsum) {
  const double n = static_cast<double>(c.cols), u = unit<T>();
  Expected e;
  e.dgamma.assign(dgamma_before.begin(), dgamma_before.end());
  std::vector<double> magnitude(dgamma_before.size());
  for (size_t i = 0; i < magnitude.size(); ++i) magnitude[i] = std::abs(e.dgamma[i]);
  for (int64_t row = 0; row < c.rows; ++row) {
    const double r = c.rstd[row];
    double dot = 0, dot_magnitude = 0;
    for (int64_t i = 0; i < c.cols; ++i) {
      const double term = to_double(c.dy[row * c.cols + i]) * to_double(c.gamma[i]) * to_double(c.x[row * c.cols + i]);
      dot += term;
      dot_magnitude += std::abs(term);
    }
    for (int64_t i = 0; i < c.cols; ++i) {
      const double s = to_double(c.x[row * c.cols + i]), dy = to_double(c.dy[row * c.cols + i]);
      const double own = dy * r * to_double(c.gamma[i]), pull = s * r * r * r * dot / n;
      const double side = with_dsum ? to_double(c.dsum[row * c.cols + i]) : 0.0;
      e.dx.push_back(own - pull + side);
      e.dx_bound.push_back(4 * u * (std::abs(own) + std::abs(pull) + std::abs(side)) +
                           std::abs(s) * r * r * r / n * (n + 2) * u * dot_magnitude +
                           store_unit<T>() * std::abs(e.dx.back()));
      e.dgamma[i] += dy * s * r;
      magnitude[i] += std::abs(dy * s * r);
    }
  }
  for (const double value : magnitude) e.dgamma_bound.push_back((static_cast<double>(c.rows) + 4) * u * value);
  return e;
}

template <class T>
class Norm : public ::testing::Test {};
TYPED_TEST_SUITE(Norm, AllElements);

TYPED_TEST(Norm, ForwardIsTheFormulaOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t cols : {1, 7, 16, 33, 64, 257, 768}) {
      Case<T> c(3, cols);
      c.forward(false);
      const auto expected = expected_y(c.x, c, kEps);
      EXPECT_WITHIN(c.y, expected, forward_bound<T>(expected, cols));
      EXPECT_NOT_WITHIN(c.y, expected_y(c.x, c, 0.1), forward_bound<T>(expected, cols));  // the control
    }
  });
}

TYPED_TEST(Norm, ForwardWithResidualKeepsTheSumAsStored) {
  using T = TypeParam;
  for_each_target([] {
    Case<T> c(5, 100);
    c.forward(true);
    std::vector<T> sum;
    for (size_t i = 0; i < c.x.size(); ++i) {
      sum.push_back(round_to<T>(static_cast<Wide<T>>(to_double(c.x[i]) + to_double(c.residual[i]))));
    }
    EXPECT_TRUE(same_bits(c.sum, sum));
    const auto expected = expected_y(sum, c, kEps);
    EXPECT_WITHIN(c.y, expected, forward_bound<T>(expected, c.cols));
  });
  Case<T> c(1, 4);
  EXPECT_THROW(rms_norm_forward(RmsNormForward<T>{.x = c.x.data(),
                                                  .residual = c.residual.data(),
                                                  .gamma = c.gamma.data(),
                                                  .eps = kEps,
                                                  .rows = 1,
                                                  .cols = 4,
                                                  .y = c.y.data(),
                                                  .rstd = c.rstd.data()}),
               LogicError);
}

TYPED_TEST(Norm, BackwardIsTheGradientOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t cols : {1, 15, 64, 130}) {
      for (const bool with_dsum : {false, true}) {
        Case<T> c(70, cols);  // 70 rows: more than one block of rows
        const auto before = c.dgamma;
        c.forward(false);
        c.backward(with_dsum);
        const Expected e = expected_backward(c, before, with_dsum);
        EXPECT_WITHIN(c.dx, e.dx, e.dx_bound);
        EXPECT_WITHIN(c.dgamma, e.dgamma, e.dgamma_bound);
        EXPECT_NOT_WITHIN(c.dx, expected_backward(c, before, !with_dsum).dx, e.dx_bound);
        const std::vector<Wide<T>> zero(before.size());
        EXPECT_NOT_WITHIN(c.dgamma, expected_backward(c, zero, with_dsum).dgamma, e.dgamma_bound);
      }
    }
  });
}

/// The formulas above could share an error with the kernel; difference quotients of the forward pass cannot.
TEST(NormGradient, AgreesWithDifferences) {
  Case<double> c(2, 9);
  const auto loss = [&] {
    c.forward(false);
    double sum = 0;
    for (size_t i = 0; i < c.y.size(); ++i) sum += c.y[i] * c.dy[i];
    return sum;
  };
  loss();
  c.backward(false);
  const auto gradient = c.dx;
  for (size_t i = 0; i < c.x.size(); ++i) {
    const double at = c.x[i], h = 1e-6;
    c.x[i] = at + h;
    const double above = loss();
    c.x[i] = at - h;
    const double below = loss();
    c.x[i] = at;
    // Third derivatives are below 1e3 here, so the truncation error is at most h^2 x 1e3 = 1e-9. Rounding of the losses
    // adds 1e-16 / h = 1e-10.
    EXPECT_NEAR(gradient[i], (above - below) / (2 * h), 2e-9);
  }
}

TYPED_TEST(Norm, InPlaceGivesTheSameBits) {
  using T = TypeParam;
  Case<T> c(40, 50), in_place(40, 50);
  c.forward(true);
  rms_norm_forward(RmsNormForward<T>{.x = in_place.x.data(),
                                     .residual = in_place.residual.data(),
                                     .gamma = in_place.gamma.data(),
                                     .eps = kEps,
                                     .rows = 40,
                                     .cols = 50,
                                     .sum = in_place.residual.data(),
                                     .y = in_place.y.data(),
                                     .rstd = in_place.rstd.data()});
  EXPECT_TRUE(same_bits(c.sum, in_place.residual));
  EXPECT_TRUE(same_bits(c.y, in_place.y));
  c.backward(true);
  rms_norm_backward(RmsNormBackward<T>{.dy = in_place.dy.data(),
                                       .s = in_place.x.data(),
                                       .gamma = in_place.gamma.data(),
                                       .rstd = in_place.rstd.data(),
                                       .dsum = in_place.dsum.data(),
                                       .rows = 40,
                                       .cols = 50,
                                       .dx = in_place.dy.data(),
                                       .dgamma = in_place.dgamma.data()});
  EXPECT_TRUE(same_bits(c.dx, in_place.dy));
  EXPECT_TRUE(same_bits(c.dgamma, in_place.dgamma));
}

TYPED_TEST(Norm, ThreadsChangeNoBits) {
  using T = TypeParam;
  expect_same_for_any_threads([] {
    Case<T> c(700, 96);
    c.forward(true);
    return c.y;
  });
  expect_same_for_any_threads([] {
    Case<T> c(700, 96);
    c.forward(false);
    c.backward(true);
    return c.dx;
  });
  expect_same_for_any_threads([] {
    Case<T> c(700, 96);
    c.forward(false);
    c.backward(true);
    return c.dgamma;
  });
}

}  // namespace
}  // namespace orthant::norm_test

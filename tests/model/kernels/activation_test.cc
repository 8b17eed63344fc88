// SwiGLU, forward and backward, equals its formula in float64 on every SIMD target, within bounds derived from the
// roundings of the kernel. Difference quotients are a second oracle; the control exchanges gate and up.
#include "model/kernels/activation.h"

#include "tests/model/kernels/testing.h"

namespace orthant::activation_test {
namespace {

template <class T>
std::vector<T> forward(const std::vector<T>& gate_up, int64_t rows, int64_t width) {
  std::vector<T> y(static_cast<size_t>(rows * width));
  swiglu_forward(SwigluForward<T>{.gate_up = gate_up.data(), .rows = rows, .width = width, .y = y.data()});
  return y;
}

template <class T>
std::vector<T> backward(const std::vector<T>& dy, const std::vector<T>& gate_up, int64_t rows, int64_t width) {
  std::vector<T> gradient(gate_up.size());
  swiglu_backward(SwigluBackward<T>{
      .dy = dy.data(), .gate_up = gate_up.data(), .rows = rows, .width = width, .d_gate_up = gradient.data()});
  return gradient;
}

struct Expected {
  std::vector<double> value, bound;
  void add(double v, double b) {
    value.push_back(v);
    bound.push_back(b + 6e-34);  // the float sigmoid stays at 6e-39 below -88; |gate|, |up| <= 300
  }
};

/// Bounds in units of rounding: the sigmoid has an error of 2 (exponential) + 1 (sum) + 1 (quotient), and y adds two
/// products and the rounding when it is stored.
template <class T>
Expected expected_forward(const std::vector<T>& gate_up, int64_t rows, int64_t width) {
  Expected e;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const double g = to_double(gate_up[row * 2 * width + i]), u = to_double(gate_up[(row * 2 + 1) * width + i]);
      const double y = g / (1 + std::exp(-g)) * u;
      e.add(y, std::abs(y) * (6 * unit<T>() + store_unit<T>()));
    }
  }
  return e;
}

/// Bounds in units of rounding: s has an error of 4, so 1 - s has at most 5 (relative to 1). Then 1 + g (1 - s) has
/// 5 |g| + 2 (1 + |g|), and its product with s has 11 (1 + |g|) s. Two more products and the store follow.
template <class T>
Expected expected_backward(const std::vector<T>& dy, const std::vector<T>& gate_up, int64_t rows, int64_t width) {
  Expected e;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> up_value, up_bound;
    for (int64_t i = 0; i < width; ++i) {
      const double g = to_double(gate_up[row * 2 * width + i]), u = to_double(gate_up[(row * 2 + 1) * width + i]);
      const double d = to_double(dy[row * width + i]), s = 1 / (1 + std::exp(-g));
      const double d_gate = d * u * s * (1 + g * (1 - s)), d_up = d * g * s;
      e.add(d_gate, 13 * unit<T>() * std::abs(d * u) * s * (1 + std::abs(g)) + store_unit<T>() * std::abs(d_gate));
      up_value.push_back(d_up);
      up_bound.push_back(std::abs(d_up) * (6 * unit<T>() + store_unit<T>()));
    }
    for (int64_t i = 0; i < width; ++i) e.add(up_value[i], up_bound[i]);
  }
  return e;
}

template <class T>
class Swiglu : public ::testing::Test {};
TYPED_TEST_SUITE(Swiglu, AllElements);

TYPED_TEST(Swiglu, IsTheFormulaOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t width : {1, 13, 16, 40, 129}) {
      for (const double scale : {1.0, 20.0, 300.0}) {
        const auto gate_up = random_values<T>(6 * width, 1, scale);
        const auto dy = random_values<T>(3 * width, 2);
        const Expected y = expected_forward(gate_up, 3, width);
        EXPECT_WITHIN(forward(gate_up, 3, width), y.value, y.bound);
        const Expected gradient = expected_backward(dy, gate_up, 3, width);
        EXPECT_WITHIN(backward(dy, gate_up, 3, width), gradient.value, gradient.bound);
        auto swapped = gate_up;  // the control: up before gate
        for (int64_t row = 0; row < 3; ++row) {
          std::swap_ranges(swapped.begin() + row * 2 * width, swapped.begin() + (row * 2 + 1) * width,
                           swapped.begin() + (row * 2 + 1) * width);
        }
        EXPECT_NOT_WITHIN(forward(swapped, 3, width), y.value, y.bound);
        EXPECT_NOT_WITHIN(backward(dy, swapped, 3, width), gradient.value, gradient.bound);
      }
    }
  });
}

// The formula above could share an error with the kernel; difference quotients of the forward pass cannot.
TEST(SwigluGradient, AgreesWithDifferences) {
  const int64_t width = 11;
  auto gate_up = random_values<double>(2 * width, 1, 3.0);
  const auto dy = random_values<double>(width, 2);
  const auto gradient = backward(dy, gate_up, 1, width);
  for (int64_t i = 0; i < 2 * width; ++i) {
    double loss[2] = {0, 0};
    const double at = gate_up[i], h = 1e-6;
    for (const int side : {0, 1}) {
      gate_up[i] = at + (side ? h : -h);
      const auto y = forward(gate_up, 1, width);
      for (int64_t k = 0; k < width; ++k) loss[side] += y[k] * dy[k];
    }
    gate_up[i] = at;
    EXPECT_NEAR(gradient[i], (loss[1] - loss[0]) / (2 * h), 1e-8);  // rounding of the loss: 1e-15 |loss| / h
  }
}

// A NaN stays in its own element, and backward in place gives the same bits.
TYPED_TEST(Swiglu, NanStaysInItsElementAndInPlaceIsEqual) {
  using T = TypeParam;
  for_each_target([] {
    auto gate_up = random_values<T>(2 * 40, 1);
    const auto dy = random_values<T>(40, 2);
    const auto expected = backward(dy, gate_up, 1, 40);
    auto in_place = gate_up;
    swiglu_backward(SwigluBackward<T>{
        .dy = dy.data(), .gate_up = in_place.data(), .rows = 1, .width = 40, .d_gate_up = in_place.data()});
    EXPECT_TRUE(same_bits(expected, in_place));
    gate_up[5] = round_to<T>(std::nan(""));
    EXPECT_TRUE(std::isnan(to_double(forward(gate_up, 1, 40)[5])));
    EXPECT_TRUE(std::isnan(to_double(backward(dy, gate_up, 1, 40)[5])));
    EXPECT_FALSE(std::isnan(to_double(forward(gate_up, 1, 40)[6])));
  });
}

TYPED_TEST(Swiglu, ThreadsAndWidthChangeNoBits) {
  using T = TypeParam;
  const auto gate_up = random_values<T>(2 * 500 * 100, 1, 4.0);
  const auto dy = random_values<T>(500 * 100, 2);
  expect_same_for_any_threads([&] { return forward(gate_up, 500, 100); });
  expect_same_for_any_threads([&] { return backward(dy, gate_up, 500, 100); });
  expect_same_for_any_width([&] { return forward(gate_up, 500, 100); });
  expect_same_for_any_width([&] { return backward(dy, gate_up, 500, 100); });
}

}  // namespace
}  // namespace orthant::activation_test

// One step of AdamW and of SGD equals its formula in double on every SIMD target. Slices, threads and the SIMD width
// change no bit. The controls change one constant of the formula.
#include "model/kernels/optimizer.h"

#include <array>
#include <limits>

#include "base/errors.h"
#include "base/exact_sum.h"
#include "tests/model/kernels/testing.h"

namespace orthant::optimizer_test {
namespace {

constexpr double kScale = 0.7, kOne = 1;

template <class T>
struct State {
  explicit State(int64_t count)
      : weights(random_values<T>(count, 1)),
        gradients(random_values<T>(count, 2, 3.0)),
        m(random_values<T>(count, 3, 0.5)),
        v(random_values<T>(count, 4, 0.5)) {
    for (T& value : v) value = std::abs(value);
  }

  AdamW<T> step(int64_t first, int64_t count) {
    return {.weights = weights.data() + first,
            .gradients = gradients.data() + first,
            .m = m.data() + first,
            .v = v.data() + first,
            .count = count,
            .lr = 3e-3,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .bias_correction1 = 1 - std::pow(0.9, 5),
            .bias_correction2 = 1 - std::pow(0.95, 5),
            .gradient_scale = &kScale};
  }

  Sgd<T> sgd_step(int64_t first, int64_t count, bool has_momentum = true) {
    return {.weights = weights.data() + first,
            .gradients = gradients.data() + first,
            .momentum_buffer = has_momentum ? m.data() + first : nullptr,
            .count = count,
            .lr = 3e-3,
            .momentum = 0.9,
            .weight_decay = 0.1,
            .gradient_scale = &kScale};
  }

  std::vector<T> weights, gradients, m, v;
};

struct Expected {
  std::vector<double> w, w_bound, m, m_bound, v, v_bound;
};

/// One step by the formulas, and bounds. Each constant and each operation is rounded once. There are 5 roundings in m,
/// 5 in v, and 9 more in the quotient, where the square root halves the error of v.
template <class T>
Expected expected_step(const State<T>& before, const AdamW<T>& by) {
  const double u = unit<T>();
  Expected e;
  for (size_t i = 0; i < before.m.size(); ++i) {
    const double g = before.gradients[i] * *by.gradient_scale;
    const double m = by.beta1 * before.m[i] + (1 - by.beta1) * g, v = by.beta2 * before.v[i] + (1 - by.beta2) * g * g;
    const double denominator = std::sqrt(v / by.bias_correction2) + by.eps;
    const double update = by.lr / by.bias_correction1 * m / denominator;
    const double decayed = before.weights[i] * (1 - by.lr * by.weight_decay);
    const double m_bound = 5 * u * (std::abs(g) + std::abs(double{before.m[i]}));
    e.m.push_back(m);
    e.m_bound.push_back(m_bound);
    e.v.push_back(v);
    e.v_bound.push_back(5 * u * v);
    e.w.push_back(decayed - update);
    e.w_bound.push_back(3 * u * std::abs(decayed) + 9 * u * std::abs(update) +
                        by.lr / by.bias_correction1 / denominator * m_bound);
  }
  return e;
}

template <class T>
class Updates : public ::testing::Test {};
TYPED_TEST_SUITE(Updates, WideElements);

TYPED_TEST(Updates, AdamWIsTheFormulaOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    const State<T> before(1003);
    State<T> after = before;
    AdamW<T> step = after.step(0, 1003);
    adamw(step);
    const Expected e = expected_step(before, step);
    EXPECT_WITHIN(after.m, e.m, e.m_bound);
    EXPECT_WITHIN(after.v, e.v, e.v_bound);
    EXPECT_WITHIN(after.weights, e.w, e.w_bound);
    step.weight_decay = 0;  // the controls: a change of each constant is seen
    EXPECT_NOT_WITHIN(after.weights, expected_step(before, step).w, e.w_bound);
    step = after.step(0, 1003);
    step.bias_correction2 = 1;
    EXPECT_NOT_WITHIN(after.weights, expected_step(before, step).w, e.w_bound);
    step = after.step(0, 1003);
    step.gradient_scale = &kOne;
    EXPECT_NOT_WITHIN(after.v, expected_step(before, step).v, e.v_bound);
  });
}

// The control leaves out the last element.
TYPED_TEST(Updates, SlicesThreadsAndWidthOfAdamWChangeNoBits) {
  using T = TypeParam;
  const auto in_slices = [](std::vector<int64_t> cuts) {
    State<T> state(100000);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) adamw(state.step(cuts[i], cuts[i + 1] - cuts[i]));
    return state.weights;
  };
  const auto whole = in_slices({0, 100000});
  EXPECT_TRUE(same_bits(whole, in_slices({0, 1, 37, 5000, 77777, 100000})));
  EXPECT_FALSE(same_bits(whole, in_slices({0, 99999})));
  expect_same_for_any_threads([&] { return in_slices({0, 100000}); });
  expect_same_for_any_width([&] { return in_slices({0, 100000}); });
}

/// One step of SGD by its formula: the weights, and the momentum buffer if there is one. Bounds of 4 roundings in the
/// buffer's terms, and 2 more in the weight.
template <class T>
Expected expected_sgd(const State<T>& before, const Sgd<T>& by) {
  const double u = unit<T>();
  Expected e;
  for (size_t i = 0; i < before.m.size(); ++i) {
    const double g = before.gradients[i] * *by.gradient_scale, decay = by.weight_decay * before.weights[i];
    const double old = by.momentum_buffer != nullptr ? by.momentum * before.m[i] : 0;
    e.m.push_back(old + g + decay);
    e.m_bound.push_back(4 * u * (std::abs(old) + std::abs(g) + std::abs(decay)));
    e.w.push_back(before.weights[i] - by.lr * e.m[i]);
    e.w_bound.push_back(2 * u * std::abs(double{before.weights[i]}) + by.lr * 2 * e.m_bound[i]);
  }
  return e;
}

TYPED_TEST(Updates, SgdIsTheFormulaOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const bool has_momentum : {true, false}) {
      const State<T> before(1003);
      State<T> after = before;
      Sgd<T> step = after.sgd_step(0, 1003, has_momentum);
      sgd(step);
      const Expected e = expected_sgd(before, step);
      EXPECT_WITHIN(after.weights, e.w, e.w_bound);
      if (has_momentum) {
        EXPECT_WITHIN(after.m, e.m, e.m_bound);
      } else {
        EXPECT_TRUE(same_bits(after.m, before.m));
      }
      step.weight_decay = 0;  // the controls: a change of each constant is seen
      EXPECT_NOT_WITHIN(after.weights, expected_sgd(before, step).w, e.w_bound);
      step = after.sgd_step(0, 1003, has_momentum);
      step.gradient_scale = &kOne;
      EXPECT_NOT_WITHIN(after.weights, expected_sgd(before, step).w, e.w_bound);
      step = after.sgd_step(0, 1003, !has_momentum);
      EXPECT_NOT_WITHIN(after.weights, expected_sgd(before, step).w, e.w_bound);
    }
  });
}

TYPED_TEST(Updates, SlicesThreadsAndWidthOfSgdChangeNoBits) {
  using T = TypeParam;
  const auto in_slices = [](std::vector<int64_t> cuts) {
    State<T> state(100000);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) sgd(state.sgd_step(cuts[i], cuts[i + 1] - cuts[i]));
    return state.weights;
  };
  const auto whole = in_slices({0, 100000});
  EXPECT_TRUE(same_bits(whole, in_slices({0, 1, 37, 5000, 77777, 100000})));
  EXPECT_FALSE(same_bits(whole, in_slices({0, 99999})));
  expect_same_for_any_threads([&] { return in_slices({0, 100000}); });
  expect_same_for_any_width([&] { return in_slices({0, 100000}); });
}

// The bfloat16 copy equals the updated float32 weights, rounded. Double weights have no such copy.
TEST(UpdatesBf16, CopyIsTheRoundedWeight) {
  for_each_target([] {
    State<float> state(1000);
    std::vector<Bf16> copy(1000);
    const auto rounded = [&] {
      std::vector<Bf16> expected;
      for (const float weight : state.weights) expected.push_back(to_bf16(weight));
      return expected;
    };
    AdamW<float> step = state.step(0, 1000);
    step.bf16_weights = copy.data();
    adamw(step);
    EXPECT_TRUE(same_bits(copy, rounded()));
    Sgd<float> other = state.sgd_step(0, 1000);
    other.bf16_weights = copy.data();
    sgd(other);
    EXPECT_TRUE(same_bits(copy, rounded()));
  });
  State<double> state(4);
  AdamW<double> step = state.step(0, 4);
  std::vector<Bf16> copy(4);
  step.bf16_weights = copy.data();
  EXPECT_THROW(adamw(step), LogicError);
}

// The control: any other scale changes the weights.
TYPED_TEST(Updates, AStepThatIsSkippedChangesNoBits) {
  using T = TypeParam;
  for (const double& scale : {kSkipsUpdate, 0.0}) {
    const State<T> before(1003);
    State<T> by_adamw = before, by_sgd = before;
    AdamW<T> adamw_step = by_adamw.step(0, 1003);
    Sgd<T> sgd_step = by_sgd.sgd_step(0, 1003);
    adamw_step.gradient_scale = sgd_step.gradient_scale = &scale;
    adamw(adamw_step);
    sgd(sgd_step);
    const bool skips = scale == kSkipsUpdate;
    for (const State<T>* after : {&by_adamw, &by_sgd}) {
      EXPECT_EQ(same_bits(after->weights, before.weights), skips);
      EXPECT_EQ(same_bits(after->m, before.m), skips);
    }
    EXPECT_EQ(same_bits(by_adamw.v, before.v), skips);
  }
}

TEST(UpdateDecision, ClipsOrSkips) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  const auto decided = [](double loss, double norm, double skip_above, double max_norm, double clipped_norm = -1) {
    ExactSum squares;
    squares.add(norm * norm);
    const std::array<double, ExactSum::kNumbers> numbers = squares.numbers();
    double scale = 5;
    decide_update({.loss = &loss,
                   .squares = numbers.data(),
                   .skip_above_norm = skip_above,
                   .max_norm = max_norm,
                   .clipped_norm = clipped_norm,
                   .gradient_scale = &scale});
    return scale;
  };
  EXPECT_EQ(decided(2, 4, 0, 0), 1);
  EXPECT_EQ(decided(2, 4, 0, 1), clip_factor(4, 1));
  EXPECT_EQ(decided(2, 4, 4, 1), clip_factor(4, 1));
  EXPECT_EQ(decided(2, 4.5, 4, 1), kSkipsUpdate);
  EXPECT_EQ(decided(2, 4, 0, 1, 2), clip_factor(2, 1));
  EXPECT_EQ(decided(2, 4, 0, 1, 0), 1);  // there was no update yet
  for (const double loss : {kInf, -kInf, kNan}) EXPECT_EQ(decided(loss, 4, 0, 1), kSkipsUpdate);
  for (const double norm : {kInf, kNan}) EXPECT_EQ(decided(2, norm, 0, 1), kSkipsUpdate);
}

}  // namespace
}  // namespace orthant::optimizer_test

// Rotary positions with the split of q, k and v: forward and backward equal their formulas in float64 on every SIMD
// target, and backward is the adjoint of forward. The controls are wrong heads, positions and directions.
#include "model/kernels/rotary.h"

#include "base/errors.h"
#include "tests/model/kernels/testing.h"

namespace orthant::rotary_test {
namespace {

template <class T>
struct Case {
  Case(RotaryShape s, bool by_batch, bool per_query_head = false)
      : shape(s), positions_per_batch(by_batch), kv_per_query_head(per_query_head) {
    const int64_t rows = s.batch * s.tokens, half = s.head_dim / 2;
    for (int64_t position = 0; position < max_position; ++position) {
      for (int64_t pair = 0; pair < half; ++pair) {
        const double turn = static_cast<double>(position) * std::pow(10000.0, -static_cast<double>(pair) / half);
        cos.push_back(static_cast<Wide<T>>(std::cos(turn)));
        sin.push_back(static_cast<Wide<T>>(std::sin(turn)));
      }
    }
    for (int64_t i = 0; i < (by_batch ? rows : s.tokens); ++i) positions.push_back((i * 7 + 3) % max_position);
    const int64_t kv = per_query_head ? s.heads : s.kv_heads;
    qkv = random_values<T>(rows * (s.heads + 2 * s.kv_heads) * s.head_dim, 1);
    q = random_values<T>(rows * s.heads * s.head_dim, 2);
    k = random_values<T>(rows * kv * s.head_dim, 3);
    v = random_values<T>(rows * kv * s.head_dim, 4);
  }

  RotaryTables<T> tables() const {
    return {cos.empty() ? nullptr : cos.data(), sin.data(), max_position, positions.data(), positions_per_batch};
  }

  void forward() {
    rope_split_forward(RopeSplitForward<T>{
        .shape = shape, .tables = tables(), .qkv_BTC = qkv.data(), .q = q.data(), .k = k.data(), .v = v.data()});
  }

  /// Takes q, k, v as the gradients and overwrites qkv.
  void backward() {
    rope_split_backward(RopeSplitBackward<T>{.shape = shape,
                                             .tables = tables(),
                                             .dq = q.data(),
                                             .dk = k.data(),
                                             .dv = v.data(),
                                             .kv_per_query_head = kv_per_query_head,
                                             .dqkv_BTC = qkv.data()});
  }

  int64_t at(int64_t heads, int64_t b, int64_t h, int64_t t, int64_t d) const {
    return ((b * heads + h) * shape.tokens + t) * shape.head_dim + d;
  }
  int64_t angle(int64_t b, int64_t t, int64_t d) const {
    const int64_t position = positions[positions_per_batch ? b * shape.tokens + t : t];
    return position * (shape.head_dim / 2) + d % (shape.head_dim / 2);
  }

  static constexpr int64_t max_position = 50;
  RotaryShape shape;
  bool positions_per_batch, kv_per_query_head;
  std::vector<Wide<T>> cos, sin;
  std::vector<int64_t> positions;
  std::vector<T> qkv, q, k, v;
};

struct Expected {
  std::vector<double> value, bound;
};

/// Adds one output of a rotation by `direction` times the angle, computed from its own and its partner's input. Bounds
/// in units of the magnitudes: two products and a sum have at most 3, and the `terms` - 1 additions before them one
/// each. The store follows.
template <class T>
void rotate(Expected& e, const Case<T>& c, int64_t angle, double own, double partner, double direction, int64_t terms) {
  const double a = own * c.cos[angle], b = direction * partner * c.sin[angle];
  e.value.push_back(a + b);
  e.bound.push_back((2.0 + static_cast<double>(terms)) * unit<T>() * (std::abs(a) + std::abs(b)) +
                    store_unit<T>() * std::abs(a + b));
}

/// The rotated heads of the forward pass: `heads` heads from head `first` of each row on.
template <class T>
Expected expected_heads(const Case<T>& c, int64_t first, int64_t heads) {
  const RotaryShape& s = c.shape;
  const int64_t half = s.head_dim / 2, width = (s.heads + 2 * s.kv_heads) * s.head_dim;
  Expected e;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < s.tokens; ++t) {
        const T* in = c.qkv.data() + (b * s.tokens + t) * width + (first + h) * s.head_dim;
        for (int64_t d = 0; d < s.head_dim; ++d) {
          const int64_t partner = (d + half) % s.head_dim;
          rotate(e, c, c.angle(b, t, d), to_double(in[d]), to_double(in[partner]), d < half ? -1 : 1, 1);
        }
      }
    }
  }
  return e;
}

/// The gradient of the fused projection. The direction must be 1; -1, the forward angle, is the control.
template <class T>
Expected expected_gradient(const Case<T>& c, double direction) {
  const RotaryShape& s = c.shape;
  const int64_t half = s.head_dim / 2, group = c.kv_per_query_head ? s.heads / s.kv_heads : 1;
  Expected e;
  const auto write = [&](const std::vector<T>& g, int64_t b, int64_t t, int64_t head, int64_t heads, int64_t terms,
                         bool turn) {
    const auto sum = [&](int64_t d) {
      double total = 0;
      for (int64_t i = 0; i < terms; ++i) total += to_double(g[c.at(heads, b, head * terms + i, t, d)]);
      return total;
    };
    for (int64_t d = 0; d < s.head_dim; ++d) {
      const double own = sum(d), partner = sum((d + half) % s.head_dim);
      if (turn) {
        rotate(e, c, c.angle(b, t, d), own, partner, direction * (d < half ? 1 : -1), terms);
      } else {
        e.value.push_back(own);
        e.bound.push_back(0);
      }
      // A group's sum has an error bounded by the magnitudes of its terms, each at most 1 here.
      e.bound.back() += terms > 1 ? 2 * static_cast<double>(terms * terms) * unit<T>() : 0;
      if (!turn && terms > 1) e.bound.back() += store_unit<T>() * std::abs(own);
    }
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      for (int64_t h = 0; h < s.heads; ++h) write(c.q, b, t, h, s.heads, 1, true);
      for (int64_t h = 0; h < s.kv_heads; ++h) write(c.k, b, t, h, s.kv_heads * group, group, true);
      for (int64_t h = 0; h < s.kv_heads; ++h) write(c.v, b, t, h, s.kv_heads * group, group, false);
    }
  }
  return e;
}

template <class T>
class Rotary : public ::testing::Test {};
TYPED_TEST_SUITE(Rotary, AllElements);

TYPED_TEST(Rotary, ForwardIsTheFormulaOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t dim : {2, 6, 32, 64}) {
      for (const bool by_batch : {false, true}) {
        Case<T> c({.batch = 2, .tokens = 5, .heads = 4, .kv_heads = 2, .head_dim = dim}, by_batch);
        c.forward();
        const Expected q = expected_heads(c, 0, 4), k = expected_heads(c, 4, 2);
        EXPECT_WITHIN(c.q, q.value, q.bound);
        EXPECT_WITHIN(c.k, k.value, k.bound);
        EXPECT_NOT_WITHIN(c.k, expected_heads(c, 2, 2).value, k.bound);  // the control: the wrong heads
        for (int64_t b = 0; b < 2; ++b) {
          for (int64_t h = 0; h < 2; ++h) {
            for (int64_t t = 0; t < 5; ++t) {
              const T* from = &c.qkv[((b * 5 + t) * 8 + 6 + h) * dim];
              EXPECT_EQ(std::memcmp(&c.v[c.at(2, b, h, t, 0)], from, dim * sizeof(T)), 0);
            }
          }
        }
        c.positions[1] += 1;  // the control: a position off by one
        EXPECT_NOT_WITHIN(c.q, expected_heads(c, 0, 4).value, q.bound);
      }
    }
  });
}

TYPED_TEST(Rotary, BackwardIsTheTransposeOnEveryTarget) {
  using T = TypeParam;
  for_each_target([] {
    for (const int64_t dim : {2, 6, 32, 64}) {
      for (const bool per_query_head : {false, true}) {
        Case<T> c({.batch = 2, .tokens = 5, .heads = 6, .kv_heads = 2, .head_dim = dim}, true, per_query_head);
        c.backward();
        const Expected e = expected_gradient(c, 1.0);
        EXPECT_WITHIN(c.qkv, e.value, e.bound);
        EXPECT_NOT_WITHIN(c.qkv, expected_gradient(c, -1.0).value, e.bound);
      }
    }
  });
}

/// Backward is the adjoint of forward, <forward(x), g> = <x, backward(g)>. This check needs no formula for the
/// rotation.
TEST(RotaryGradient, IsAdjoint) {
  Case<double> c({.batch = 2, .tokens = 7, .heads = 4, .kv_heads = 2, .head_dim = 16}, true), g = c;
  g.backward();
  const auto x = c.qkv;
  c.forward();
  double left = 0, right = 0;
  for (size_t i = 0; i < c.q.size(); ++i) left += c.q[i] * g.q[i];
  for (size_t i = 0; i < c.k.size(); ++i) left += c.k[i] * g.k[i] + c.v[i] * g.v[i];
  for (size_t i = 0; i < x.size(); ++i) right += x[i] * g.qkv[i];
  EXPECT_NEAR(left, right, 1e-12);  // a few thousand terms below 1, each with an error of 2^-53
}

// Without tables, forward splits q, k and v without a rotation, and backward joins them to the same bits.
TYPED_TEST(Rotary, WithoutTablesOnlyTheLayoutChanges) {
  using T = TypeParam;
  Case<T> c({.batch = 2, .tokens = 3, .heads = 4, .kv_heads = 2, .head_dim = 10}, false);
  c.cos.clear();
  const auto before = c.qkv;
  c.forward();
  std::fill(c.qkv.begin(), c.qkv.end(), T{});
  EXPECT_FALSE(same_bits(before, c.qkv));
  c.backward();
  EXPECT_TRUE(same_bits(before, c.qkv));
}

TYPED_TEST(Rotary, ThreadsAndWidthChangeNoBits) {
  using T = TypeParam;
  const RotaryShape shape{.batch = 3, .tokens = 67, .heads = 8, .kv_heads = 4, .head_dim = 32};
  const auto forward = [&] {
    Case<T> c(shape, true);
    c.forward();
    return c.q;
  };
  const auto backward = [&] {
    Case<T> c(shape, true, true);
    c.backward();
    return c.qkv;
  };
  expect_same_for_any_threads(forward);
  expect_same_for_any_threads(backward);
  expect_same_for_any_width(forward);
  expect_same_for_any_width(backward);
}

TEST(RotaryChecks, RefuseWhatWouldReadElsewhere) {
  Case<float> c({.batch = 1, .tokens = 3, .heads = 4, .kv_heads = 2, .head_dim = 8}, false);
  EXPECT_NO_THROW(c.forward());
  c.positions[2] = c.max_position;
  EXPECT_THROW(c.forward(), LogicError);
  c.positions[2] = -1;
  EXPECT_THROW(c.backward(), LogicError);
  c.positions[2] = 0;
  c.shape.kv_heads = 3;
  EXPECT_THROW(c.forward(), LogicError);
}

}  // namespace
}  // namespace orthant::rotary_test

#include "model/kernels/rotary.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/rotary.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// Cosines and sines of one token; null for heads that are not rotated.
template <class T>
struct Angles {
  const Wide<T>* cos;
  const Wide<T>* sin;
};

template <class T>
HWY_INLINE Angles<T> angles_of(const RotaryTables<T>& tables, const RotaryShape& shape, int64_t token) {
  if (!tables.cos) return {nullptr, nullptr};
  const int64_t place = tables.positions_per_batch ? token : token % shape.tokens;
  const int64_t offset = tables.positions[place] * (shape.head_dim / 2);
  return {tables.cos + offset, tables.sin + offset};
}

/// Rotates the pairs (k, k + D/2) of one head by the angles, or by their negatives if kBack.
template <bool kBack, class T, class Load>
HWY_INLINE void rotate_head(Angles<T> angles, int64_t head_dim, Load load_input, T* out) {
  const int64_t half = head_dim / 2;
  for_vectors<Wide<T>>(half, [=](int64_t i, auto part) ORTHANT_BODY {
    const auto cos = load(angles.cos + i, part);
    const auto sin = load(angles.sin + i, part);
    const auto a = load_input(i, part);
    const auto b = load_input(i + half, part);
    const auto a_cos = hn::Mul(a, cos);
    const auto b_cos = hn::Mul(b, cos);
    store(kBack ? hn::MulAdd(b, sin, a_cos) : hn::NegMulAdd(b, sin, a_cos), out + i, part);
    store(kBack ? hn::NegMulAdd(a, sin, b_cos) : hn::MulAdd(a, sin, b_cos), out + i + half, part);
  });
}

/// Writes one head, rotated if there are angles and copied otherwise.
template <bool kBack, class T, class Load>
HWY_INLINE void write_head(Angles<T> angles, int64_t head_dim, Load load_input, T* out) {
  if (angles.cos) return rotate_head<kBack>(angles, head_dim, load_input, out);
  for_vectors<Wide<T>>(head_dim,
                       [=](int64_t i, auto part) ORTHANT_BODY { store(load_input(i, part), out + i, part); });
}

template <class T>
void rope_forward(const RopeSplitForward<T>& args, int64_t begin, int64_t end) {
  const RotaryShape shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * dim;
  for (int64_t token = begin; token < end; ++token) {
    const auto angles = angles_of<T>(args.tables, shape, token);
    const int64_t sequence = token / shape.tokens;
    const int64_t t = token % shape.tokens;
    const T* in = args.qkv_BTC + token * width;
    const auto write = [&](T* out, int64_t heads, int64_t head, Angles<T> turn) ORTHANT_BODY {
      const T* from = in;
      const auto load_input = [=](int64_t i, auto part) ORTHANT_BODY { return load(from + i, part); };
      write_head<false>(turn, dim, load_input, out + shape.offset(sequence, heads, head, t));
      in += dim;
    };
    for (int64_t head = 0; head < shape.heads; ++head) write(args.q, shape.heads, head, angles);
    for (int64_t head = 0; head < shape.kv_heads; ++head) write(args.k, shape.kv_heads, head, angles);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      write(args.v, shape.kv_heads, head, Angles<T>{nullptr, nullptr});
    }
  }
}

template <class T>
void rope_backward(const RopeSplitBackward<T>& args, int64_t begin, int64_t end) {
  const RotaryShape shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t width = (shape.heads + 2 * shape.kv_heads) * dim;
  const int64_t group = args.kv_per_query_head ? shape.heads / shape.kv_heads : 1;
  const int64_t head_stride = shape.by_token ? dim : shape.tokens * dim;
  for (int64_t token = begin; token < end; ++token) {
    const auto angles = angles_of<T>(args.tables, shape, token);
    const int64_t sequence = token / shape.tokens;
    const int64_t t = token % shape.tokens;
    T* out = args.dqkv_BTC + token * width;
    const auto write = [&](const T* d_out, int64_t heads, int64_t head, int64_t summed, Angles<T> turn) ORTHANT_BODY {
      const T* from = d_out + shape.offset(sequence, heads, head * summed, t);
      const auto load_input = [=](int64_t i, auto part) ORTHANT_BODY {
        auto sum = load(from + i, part);
        for (int64_t g = 1; g < summed; ++g) sum = hn::Add(sum, load(from + g * head_stride + i, part));
        return sum;
      };
      write_head<true>(turn, dim, load_input, out);
      out += dim;
    };
    const int64_t kv_heads = shape.kv_heads * group;
    for (int64_t head = 0; head < shape.heads; ++head) write(args.dq, shape.heads, head, 1, angles);
    for (int64_t head = 0; head < shape.kv_heads; ++head) write(args.dk, kv_heads, head, group, angles);
    for (int64_t head = 0; head < shape.kv_heads; ++head) {
      write(args.dv, kv_heads, head, group, Angles<T>{nullptr, nullptr});
    }
  }
}

#define ORTHANT_ROPE_KERNELS(T, tag)                      \
  ORTHANT_KERNEL(rope_forward, RopeSplitForward, T, tag)  \
  ORTHANT_KERNEL(rope_backward, RopeSplitBackward, T, tag)
ORTHANT_ROPE_KERNELS(float, f32)
ORTHANT_ROPE_KERNELS(Bf16, bf16)
ORTHANT_ROPE_KERNELS(double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/errors.h"
#include "model/kernels/parallel.h"

namespace orthant {
namespace {

template <class T>
void check_rotary(const RotaryShape& shape, const RotaryTables<T>& tables) {
  ORTHANT_CHECK(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, shape.heads, shape.kv_heads);
  if (!tables.cos) return;
  ORTHANT_CHECK(shape.head_dim % 2 == 0, shape.head_dim);
  const int64_t count = tables.positions_per_batch ? shape.batch * shape.tokens : shape.tokens;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = tables.positions[i];
    ORTHANT_CHECK(position >= 0 && position < tables.max_position, i, position, tables.max_position);
  }
}

}  // namespace

#define ORTHANT_ROPE_DISPATCH(T, tag)                       \
  ORTHANT_DISPATCH(rope_forward, RopeSplitForward, T, tag)  \
  ORTHANT_DISPATCH(rope_backward, RopeSplitBackward, T, tag)
ORTHANT_ROPE_DISPATCH(float, f32)
ORTHANT_ROPE_DISPATCH(Bf16, bf16)
ORTHANT_ROPE_DISPATCH(double, f64)

template <class T>
void rope_split_forward(const RopeSplitForward<T>& args) {
  const RotaryShape& shape = args.shape;
  check_rotary(shape, args.tables);
  parallel_rows(shape.batch * shape.tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                [&](int64_t begin, int64_t end) { rope_forward(args, begin, end); });
}

template <class T>
void rope_split_backward(const RopeSplitBackward<T>& args) {
  const RotaryShape& shape = args.shape;
  check_rotary(shape, args.tables);
  parallel_rows(shape.batch * shape.tokens, (shape.heads + 2 * shape.kv_heads) * shape.head_dim,
                [&](int64_t begin, int64_t end) { rope_backward(args, begin, end); });
}

template void rope_split_forward(const RopeSplitForward<float>&);
template void rope_split_forward(const RopeSplitForward<Bf16>&);
template void rope_split_forward(const RopeSplitForward<double>&);
template void rope_split_backward(const RopeSplitBackward<float>&);
template void rope_split_backward(const RopeSplitBackward<Bf16>&);
template void rope_split_backward(const RopeSplitBackward<double>&);

}  // namespace orthant
#endif  // HWY_ONCE

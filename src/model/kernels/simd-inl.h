// Helpers of all kernels on top of Highway: loads and stores that widen and round, loops with a tail, and sums in a
// fixed order. Compiled once per SIMD target; include it after hwy/foreach_target.h.

#ifndef ORTHANT_SIMD_ONCE
#define ORTHANT_SIMD_ONCE

#include <cstdint>
#include <cstring>

#include "model/kernels/element.h"

// Attributes of a loop body: compiled for the same SIMD target as the enclosing code, and always inlined.
#define ORTHANT_BODY HWY_ATTR __attribute__((always_inline))

// A kernel is a template over the element type in the target's namespace, called on a range of rows. Highway's tables
// take no templates. ORTHANT_KERNEL therefore makes one plain function per element type, and ORTHANT_DISPATCH makes
// dispatchers that are overloads again.
#define ORTHANT_KERNEL(name, Args, T, tag) \
  void name##_##tag(const Args<T>& args, int64_t begin, int64_t end) { name<T>(args, begin, end); }
#define ORTHANT_DISPATCH(name, Args, T, tag)                             \
  HWY_EXPORT(name##_##tag);                                              \
  static void name(const Args<T>& args, int64_t begin, int64_t end) {    \
    HWY_DYNAMIC_DISPATCH(name##_##tag)(args, begin, end);                \
  }

#endif  // ORTHANT_SIMD_ONCE

#if defined(ORTHANT_SIMD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTHANT_SIMD_INL_H
#undef ORTHANT_SIMD_INL_H
#else
#define ORTHANT_SIMD_INL_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The vector type for arithmetic on elements of type T, and its Highway tag.
template <class T>
using Tag = hn::ScalableTag<Wide<T>>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

/// The lanes of a vector that hold elements: all of them (Full), or the first `count` (Tail).
struct Full {};
struct Tail {
  int64_t count;
};

template <class T>
HWY_INLINE Vec<T> splat(double value) {
  return hn::Set(Tag<T>(), static_cast<Wide<T>>(value));
}

HWY_INLINE Vec<float> load(const float* from, Full) { return hn::LoadU(Tag<float>(), from); }
HWY_INLINE Vec<double> load(const double* from, Full) { return hn::LoadU(Tag<double>(), from); }
HWY_INLINE Vec<Bf16> load(const Bf16* from, Full) {
  const Tag<float> f32;
  const hn::Rebind<uint32_t, Tag<float>> u32;
  const hn::Rebind<uint16_t, Tag<float>> u16;
  const auto bits = hn::PromoteTo(u32, hn::LoadU(u16, &from->bits));
  return hn::BitCast(f32, hn::ShiftLeft<16>(bits));
}

/// Sets lanes past the tail to zero and reads nothing past it.
template <class T>
HWY_INLINE Vec<T> load(const T* from, Tail tail) {
  HWY_ALIGN T buffer[hn::MaxLanes(Tag<T>())] = {};
  __builtin_memcpy(buffer, from, static_cast<size_t>(tail.count) * sizeof(T));
  return load(buffer, Full());
}

/// Stores round to T, to nearest even, and return the stored value.
HWY_INLINE Vec<float> store(Vec<float> value, float* to, Full) {
  hn::StoreU(value, Tag<float>(), to);
  return value;
}
HWY_INLINE Vec<double> store(Vec<double> value, double* to, Full) {
  hn::StoreU(value, Tag<double>(), to);
  return value;
}
HWY_INLINE Vec<Bf16> store(Vec<Bf16> value, Bf16* to, Full) {
  const Tag<float> f32;
  const hn::Rebind<uint32_t, Tag<float>> u32;
  const hn::Rebind<int32_t, Tag<float>> i32;
  const hn::Rebind<uint16_t, Tag<float>> u16;
  const auto bits = hn::BitCast(u32, value);
  const auto odd = hn::TestBit(bits, hn::Set(u32, 0x10000u));
  const auto rounded = hn::Add(bits, hn::IfThenElse(odd, hn::Set(u32, 0x8000u), hn::Set(u32, 0x7FFFu)));
  const auto quiet = hn::Or(bits, hn::Set(u32, 0x400000u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(u32, hn::IsNaN(value)), quiet, rounded);
  const auto upper = hn::ShiftRight<16>(chosen);
  hn::StoreU(hn::DemoteTo(u16, hn::BitCast(i32, upper)), u16, &to->bits);
  return hn::BitCast(f32, hn::ShiftLeft<16>(upper));
}
template <class T>
HWY_INLINE Vec<T> store(Vec<T> value, T* to, Tail tail) {
  HWY_ALIGN T buffer[hn::MaxLanes(Tag<T>())];
  const auto stored = store(value, buffer, Full());
  __builtin_memcpy(to, buffer, static_cast<size_t>(tail.count) * sizeof(T));
  return stored;
}

/// Returns `value`, with `other` in the lanes past the tail.
template <class T>
HWY_INLINE Vec<T> keep(Vec<T> value, Vec<T>, Full) {
  return value;
}
template <class T>
HWY_INLINE Vec<T> keep(Vec<T> value, Vec<T> other, Tail tail) {
  return hn::IfThenElse(hn::FirstN(Tag<T>(), static_cast<size_t>(tail.count)), value, other);
}

/// Calls body(i, part) for each vector of elements i, i + 1, ... below count.
template <class T, class Body>
HWY_INLINE void for_vectors(int64_t count, Body body) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Tag<T>()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, Full());
  if (i < count) body(i, Tail{count - i});
}

/// Folds body(accumulator, i, part) over the vectors with four accumulators, so that additions overlap. `join` combines
/// the accumulators.
template <class T, class Body, class Join>
HWY_INLINE Vec<T> fold_vectors(int64_t count, Vec<T> start, Body body, Join join) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Tag<T>()));
  Vec<T> a = start, b = start, c = start, d = start;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = body(a, i, Full());
    b = body(b, i + lanes, Full());
    c = body(c, i + 2 * lanes, Full());
    d = body(d, i + 3 * lanes, Full());
  }
  for (; i + lanes <= count; i += lanes) a = body(a, i, Full());
  if (i < count) b = body(b, i, Tail{count - i});
  return join(join(a, b), join(c, d));
}

/// The sum that body(sum, i, part) accumulates, in an order that depends only on count.
template <class T, class Body>
HWY_INLINE Wide<T> sum_vectors(int64_t count, Body body) {
  const auto add = [](Vec<T> x, Vec<T> y) ORTHANT_BODY { return hn::Add(x, y); };
  const Vec<T> sum = fold_vectors<T>(count, hn::Zero(Tag<T>()), body, add);
  return hn::GetLane(hn::SumOfLanes(Tag<T>(), sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#endif  // per target

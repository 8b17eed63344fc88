#include "model/kernels/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/random.cc"
#include "hwy/foreach_target.h"
#include "hwy/contrib/math/math-inl.h"
#include "model/kernels/philox-inl.h"
#include "model/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// kChunk: elements drawn into a buffer at a time. kSlack: extra elements, because full vectors of blocks may write
/// past the end.
inline constexpr int64_t kChunk = 1024;
inline constexpr int64_t kSlack = 4 + 4 * static_cast<int64_t>(hn::MaxLanes(U64()));

HWY_INLINE hn::Mask<Tag<float>> at_least(const uint32_t* words, uint32_t threshold, float) {
  const hn::Rebind<uint32_t, Tag<float>> u32;
  return hn::RebindMask(Tag<float>(), hn::Not(hn::Lt(hn::LoadU(u32, words), hn::Set(u32, threshold))));
}
HWY_INLINE hn::Mask<Tag<double>> at_least(const uint32_t* words, uint32_t threshold, double) {
  const hn::Rebind<int64_t, Tag<double>> i64;
  const auto wide = hn::PromoteTo(hn::Rebind<uint64_t, Tag<double>>(),
                                  hn::LoadU(hn::Rebind<uint32_t, Tag<double>>(), words));
  return hn::RebindMask(Tag<double>(), hn::Not(hn::Lt(hn::BitCast(i64, wide), hn::Set(i64, int64_t{threshold}))));
}

template <class T>
void dropout_elements(const Dropout<T>& args, int64_t begin, int64_t end) {
  HWY_ALIGN uint64_t drawn[(kChunk + kSlack) / 2];
  const double limit = __builtin_ceil(args.p * 4294967296.0);
  const uint32_t threshold = limit > 4294967295.0 ? 4294967295u : static_cast<uint32_t>(limit);
  const auto factor = splat<T>(1.0 / (1.0 - args.p));
  for (int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const int64_t count = HWY_MIN(kChunk, end - chunk);
    const uint64_t index = args.first_index + static_cast<uint64_t>(chunk);
    const int64_t skip = static_cast<int64_t>(index % 4);
    philox_words(args.seed, args.stream, index / 4, (skip + count + 3) / 4, drawn);
    const T* x = args.x + chunk;
    T* y = args.y + chunk;
    const uint32_t* first_word = reinterpret_cast<const uint32_t*>(drawn) + skip;
    for_vectors<T>(count, [=](int64_t i, auto part) ORTHANT_BODY {
      const auto kept = at_least(first_word + i, threshold, Wide<T>());
      store(hn::IfThenElseZero(kept, hn::Mul(load(x + i, part), factor)), y + i, part);
    });
  }
}

/// Writes the standard normal deviates of at least `blocks` blocks, two per block.
HWY_INLINE void normal_pairs(uint64_t seed, uint64_t stream, uint64_t first, int64_t blocks, double* HWY_RESTRICT out) {
  const U64 u64;
  const Tag<double> f64;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(u64));
  HWY_ALIGN uint64_t words[kChunk + kSlack];
  philox_words(seed, stream, first, blocks, words);
  const auto one = hn::Set(f64, 1.0);
  // Uses the upper 52 bits as the fraction of a number in [1, 2).
  const auto uniform = [=](auto bits) ORTHANT_BODY {
    return hn::BitCast(f64, hn::Or(hn::ShiftRight<12>(bits), hn::Set(u64, 0x3FF0000000000000ull)));
  };
  for (int64_t block = 0; block < blocks; block += lanes) {
    hn::Vec<U64> radius_bits, angle_bits;
    load_pairs(words + 2 * block, radius_bits, angle_bits);
    const auto positive = hn::Sub(hn::Set(f64, 2.0), uniform(radius_bits));  // in (0, 1]
    const auto radius = hn::Sqrt(hn::Mul(hn::Set(f64, -2.0), hn::Log(f64, positive)));
    const auto angle = hn::Mul(hn::Set(f64, 6.283185307179586), hn::Sub(uniform(angle_bits), one));
    store_pairs(hn::Mul(radius, hn::Cos(f64, angle)), hn::Mul(radius, hn::Sin(f64, angle)), out + 2 * block);
  }
}

template <class T>
void normal_elements(const FillNormal<T>& args, int64_t begin, int64_t end) {
  HWY_ALIGN double deviates[kChunk + kSlack];
  for (int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const int64_t count = HWY_MIN(kChunk, end - chunk);
    const uint64_t index = args.first_index + static_cast<uint64_t>(chunk);
    const int64_t skip = static_cast<int64_t>(index % 2);
    normal_pairs(args.seed, args.stream, index / 2, (skip + count + 1) / 2, deviates);
    T* out = args.out + chunk;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(args.mean + args.std * deviates[skip + i]);
  }
}

ORTHANT_KERNEL(dropout_elements, Dropout, float, f32)
ORTHANT_KERNEL(dropout_elements, Dropout, Bf16, bf16)
ORTHANT_KERNEL(dropout_elements, Dropout, double, f64)
ORTHANT_KERNEL(normal_elements, FillNormal, float, f32)
ORTHANT_KERNEL(normal_elements, FillNormal, double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/errors.h"
#include "model/kernels/parallel.h"

namespace orthant {

ORTHANT_DISPATCH(dropout_elements, Dropout, float, f32)
ORTHANT_DISPATCH(dropout_elements, Dropout, Bf16, bf16)
ORTHANT_DISPATCH(dropout_elements, Dropout, double, f64)
ORTHANT_DISPATCH(normal_elements, FillNormal, float, f32)
ORTHANT_DISPATCH(normal_elements, FillNormal, double, f64)

template <class T>
void dropout(const Dropout<T>& args) {
  ORTHANT_CHECK(args.p >= 0.0 && args.p < 1.0, args.p);
  parallel_elements(args.count, [&](int64_t begin, int64_t end) { dropout_elements(args, begin, end); });
}

template <class T>
void fill_normal(const FillNormal<T>& args) {
  parallel_elements(args.count, [&](int64_t begin, int64_t end) { normal_elements(args, begin, end); });
}

double normal(uint64_t seed, uint64_t stream, uint64_t index) {
  double value = 0.0;
  fill_normal(FillNormal<double>{.out = &value, .count = 1, .seed = seed, .stream = stream, .first_index = index});
  return value;
}

template void dropout(const Dropout<float>&);
template void dropout(const Dropout<Bf16>&);
template void dropout(const Dropout<double>&);
template void fill_normal(const FillNormal<float>&);
template void fill_normal(const FillNormal<double>&);

}  // namespace orthant
#endif  // HWY_ONCE

// Vectorized Philox: the random words of many consecutive blocks, in the order of block numbers. Compiled once per SIMD
// target, after simd-inl.h.

#if defined(ORTHANT_PHILOX_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTHANT_PHILOX_INL_H
#undef ORTHANT_PHILOX_INL_H
#else
#define ORTHANT_PHILOX_INL_H
#endif

#include "base/philox.h"
#include "hwy/highway.h"
#include "model/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

using U64 = hn::ScalableTag<uint64_t>;

#if HWY_TARGET == HWY_SCALAR  // a vector of one lane cannot interleave

HWY_INLINE void philox_words(uint64_t seed, uint64_t stream, uint64_t first, int64_t blocks, uint64_t* out) {
  for (int64_t block = 0; block < blocks; ++block) {
    const std::array<uint32_t, 4> words = philox_block(seed, stream, first + static_cast<uint64_t>(block));
    __builtin_memcpy(out + 2 * block, &words, sizeof(words));
  }
}
HWY_INLINE void load_pairs(const uint64_t* from, hn::Vec<U64>& even, hn::Vec<U64>& odd) {
  even = hn::LoadU(U64(), from);
  odd = hn::LoadU(U64(), from + 1);
}
HWY_INLINE void store_pairs(Vec<double> even, Vec<double> odd, double* to) {
  hn::StoreU(even, Tag<double>(), to);
  hn::StoreU(odd, Tag<double>(), to + 1);
}

#else

/// Ten rounds on one counter per 64-bit lane. The words (a, b, c, d) occupy the lower halves; the widening product
/// ignores the upper halves.
HWY_INLINE void philox_rounds(uint64_t seed, hn::Vec<U64>& a, hn::Vec<U64>& b, hn::Vec<U64>& c, hn::Vec<U64>& d) {
  const U64 u64;
  const hn::Repartition<uint32_t, U64> u32;
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const auto product0 = hn::MulEven(hn::BitCast(u32, a), hn::Set(u32, kPhiloxMultiplier0));
    const auto product1 = hn::MulEven(hn::BitCast(u32, c), hn::Set(u32, kPhiloxMultiplier1));
    a = hn::Xor3(hn::ShiftRight<32>(product1), b, hn::Set(u64, key0));
    b = product1;
    c = hn::Xor3(hn::ShiftRight<32>(product0), d, hn::Set(u64, key1));
    d = product0;
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
}

/// Writes the words of at least `blocks` blocks from number `first` on; the last vector of blocks is written in full.
/// Even lanes hold the first half of a vector's blocks and odd lanes the second half. Interleaving pairs of words
/// therefore puts the blocks in order.
HWY_INLINE void philox_words(uint64_t seed, uint64_t stream, uint64_t first, int64_t blocks, uint64_t* out) {
  const U64 u64;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(u64));
  HWY_ALIGN uint64_t lane_block[hn::MaxLanes(U64())];
  for (int64_t lane = 0; lane < lanes; ++lane) {
    lane_block[lane] = static_cast<uint64_t>(lane / 2 + lane % 2 * (lanes / 2));
  }
  const auto lower = hn::Set(u64, 0xFFFFFFFFull);
  for (int64_t block = 0; block < blocks; block += lanes) {
    auto a = hn::Add(hn::Load(u64, lane_block), hn::Set(u64, first + static_cast<uint64_t>(block)));
    auto b = hn::ShiftRight<32>(a);
    auto c = hn::Set(u64, stream);
    auto d = hn::Set(u64, stream >> 32);
    philox_rounds(seed, a, b, c, d);
    const auto ab = hn::Or(hn::And(a, lower), hn::ShiftLeft<32>(b));
    const auto cd = hn::Or(hn::And(c, lower), hn::ShiftLeft<32>(d));
    hn::StoreU(hn::InterleaveLower(u64, ab, cd), u64, out + 2 * block);
    hn::StoreU(hn::InterleaveUpper(u64, ab, cd), u64, out + 2 * block + lanes);
  }
}
HWY_INLINE void load_pairs(const uint64_t* from, hn::Vec<U64>& even, hn::Vec<U64>& odd) {
  hn::LoadInterleaved2(U64(), from, even, odd);
}
HWY_INLINE void store_pairs(Vec<double> even, Vec<double> odd, double* to) {
  hn::StoreInterleaved2(even, odd, Tag<double>(), to);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#endif  // per target

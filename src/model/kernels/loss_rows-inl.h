// The maximum of one row of logits, and sums over it. Compiled once per SIMD target.

#if defined(ORTHANT_LOSS_ROWS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTHANT_LOSS_ROWS_INL_H
#undef ORTHANT_LOSS_ROWS_INL_H
#else
#define ORTHANT_LOSS_ROWS_INL_H
#endif

#include "base/output_loss.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// Number of terms summed in T's arithmetic before the sum continues in double.
inline constexpr int64_t kSumTerms = 1024;

template <class T>
HWY_INLINE Wide<T> row_maximum(const T* logits, int64_t vocab) {
  const auto lowest = splat<T>(-__builtin_inf());
  const auto max = [](Vec<T> x, Vec<T> y) ORTHANT_BODY { return hn::Max(x, y); };
  const auto body = [=](Vec<T> most, int64_t i, auto part) ORTHANT_BODY {
    return hn::Max(most, keep<T>(load(logits + i, part), lowest, part));
  };
  return hn::GetLane(hn::MaxOfLanes(Tag<T>(), fold_vectors<T>(vocab, lowest, body, max)));
}

/// Converts products of the head to logits, by soft-capping if kCapped. Every read of a product caps it again, so that
/// a value stored in few bits is rounded only once.
template <class T, bool kCapped>
struct Logits {
  Vec<T> cap, inverse;

  explicit HWY_INLINE Logits(const OutputLoss& loss)
      : cap(splat<T>(loss.softcap)), inverse(splat<T>(kCapped ? 1 / loss.softcap : 0)) {}
  HWY_INLINE Vec<T> tanh(Vec<T> product) const { return hn::Tanh(Tag<T>(), hn::Mul(product, inverse)); }
  HWY_INLINE Vec<T> of(Vec<T> product) const {
    if constexpr (kCapped) return hn::Mul(cap, tanh(product));
    return product;
  }
};

/// The sum over one row of exp(logit - maximum) (row_exp_sum), or of the logits (row_sum).
template <class T, bool kCapped>
HWY_INLINE double row_exp_sum(const T* products, int64_t vocab, Vec<T> maximum, const Logits<T, kCapped>& logits) {
  double sum = 0.0;
  for (int64_t first = 0; first < vocab; first += kSumTerms) {
    const T* block = products + first;
    sum += sum_vectors<T>(HWY_MIN(kSumTerms, vocab - first), [=](Vec<T> total, int64_t i, auto part) ORTHANT_BODY {
      const auto value = exp_to_88<T>(hn::Sub(logits.of(load(block + i, part)), maximum));
      return hn::Add(total, keep<T>(value, hn::Zero(Tag<T>()), part));
    });
  }
  return sum;
}
template <class T, bool kCapped>
HWY_INLINE double row_sum(const T* products, int64_t vocab, const Logits<T, kCapped>& logits) {
  double sum = 0.0;
  for (int64_t first = 0; first < vocab; first += kSumTerms) {
    const T* block = products + first;
    sum += sum_vectors<T>(HWY_MIN(kSumTerms, vocab - first), [=](Vec<T> total, int64_t i, auto part) ORTHANT_BODY {
      return hn::Add(total, keep<T>(logits.of(load(block + i, part)), hn::Zero(Tag<T>()), part));
    });
  }
  return sum;
}

template <class T>
HWY_INLINE void clear_row(T* logits, int64_t vocab) {
  __builtin_memset(logits, 0, static_cast<size_t>(vocab) * sizeof(T));
}

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#endif  // per target

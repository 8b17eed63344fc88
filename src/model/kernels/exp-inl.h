// The exponential of the activation and the loss. Compiled once per SIMD target, after simd-inl.h.

#if defined(ORTHANT_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTHANT_EXP_INL_H
#undef ORTHANT_EXP_INL_H
#else
#define ORTHANT_EXP_INL_H
#endif

#include "hwy/contrib/math/math-inl.h"
#include "model/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// exp(x) within one ulp, 0 for very negative x. Highway's own gives 0 for a NaN too, which would hide it.
template <class T>
HWY_INLINE Vec<T> exp_or_nan(Vec<T> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Tag<T>(), x));
}

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#endif  // per target

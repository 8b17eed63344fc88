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

/// exp(x) for x <= 88, within 0.9 ulp (1.2 where there is no fused multiply-add): 2^n exp(r) with n the integer next to
/// x / ln 2, and a polynomial of degree 6 for exp(r) that is off by less than 2^-27 for |r| <= ln 2 / 2. Below -87.3,
/// where the result is no normal number, it is 0; a NaN stays one. Half the work of Highway's own, which serves every
/// float.
HWY_INLINE Vec<float> exp_to_88(Vec<float> x, float) {
  const Tag<float> f32;
  const hn::RebindToUnsigned<Tag<float>> u32;
  // Added to a number, it rounds it to an integer, which stands in the lowest bits with the exponent bias 127 added.
  const auto magic = hn::Set(f32, 12583039.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(f32, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto power = hn::BitCast(f32, hn::ShiftLeft<23>(hn::BitCast(u32, shifted)));
  // ln 2 in two parts; n has at most 8 bits, so its product with the first is exact.
  auto r = hn::NegMulAdd(n, hn::Set(f32, 0.693145752f), x);
  r = hn::NegMulAdd(n, hn::Set(f32, 1.42860677e-6f), r);
  auto value = hn::MulAdd(r, hn::Set(f32, 0.00138144672f), hn::Set(f32, 0.00836878084f));
  value = hn::MulAdd(r, value, hn::Set(f32, 0.0416683927f));
  value = hn::MulAdd(r, value, hn::Set(f32, 0.166665196f));
  value = hn::MulAdd(r, value, hn::Set(f32, 0.49999994f));
  value = hn::MulAdd(r, value, hn::Set(f32, 1.0f));
  value = hn::MulAdd(r, value, hn::Set(f32, 1.0f));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(f32, -87.3f)), hn::Mul(value, power));
}

HWY_INLINE Vec<double> exp_to_88(Vec<double> x, double) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(Tag<double>(), x));
}

template <class T>
HWY_INLINE Vec<T> exp_to_88(Vec<T> x) {
  return exp_to_88(x, Wide<T>());
}

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#endif  // per target

// A vectorized exponential for the activation and the loss. Compiled once per SIMD target, after simd-inl.h.

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

/// exp(x) for x <= 88, within 0.9 ulp (1.2 without fused multiply-add). It computes 2^n exp(r) with n the integer
/// nearest to x / ln 2. exp(r) is a polynomial of degree 6 with an error below 2^-27 for |r| <= ln 2 / 2. Results are 0
/// for x below -87.3, where exp(x) is subnormal; a NaN stays a NaN. It costs half the work of Highway's Exp, which
/// accepts every float.
HWY_INLINE Vec<float> exp_to_88(Vec<float> x, float) {
  const Tag<float> f32;
  const hn::RebindToUnsigned<Tag<float>> u32;
  // Adding this number rounds x / ln 2 to an integer, held in the lowest bits with the exponent bias 127 added.
  const auto magic = hn::Set(f32, 12583039.0f);
  const auto shifted = hn::MulAdd(x, hn::Set(f32, 1.44269504f), magic);
  const auto n = hn::Sub(shifted, magic);
  const auto power = hn::BitCast(f32, hn::ShiftLeft<23>(hn::BitCast(u32, shifted)));
  // ln 2 is split in two parts. n has at most 8 bits, so its product with the first part is exact.
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

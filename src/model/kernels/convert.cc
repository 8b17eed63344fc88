#include "model/kernels/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/convert.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/simd-inl.h"

#ifndef ORTHANT_CONVERT_ONCE
#define ORTHANT_CONVERT_ONCE
namespace orthant {

template <class T>
struct Scaling {
  T* x;
  double factor;
};

}  // namespace orthant
#endif

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

void add_bf16(float* dst, const Bf16* src, int64_t count) {
  for_vectors<float>(count, [=](int64_t i, auto part) ORTHANT_BODY {
    store(hn::Add(load(dst + i, part), load(src + i, part)), dst + i, part);
  });
}

void narrow(const float* src, Bf16* dst, int64_t count) {
  for_vectors<float>(count, [=](int64_t i, auto part) ORTHANT_BODY { store(load(src + i, part), dst + i, part); });
}

void widen(const Bf16* src, float* dst, int64_t count) {
  for_vectors<float>(count, [=](int64_t i, auto part) ORTHANT_BODY { store(load(src + i, part), dst + i, part); });
}

template <class T>
void scale_elements(const Scaling<T>& args, int64_t begin, int64_t end) {
  const auto factor = splat<T>(args.factor);
  T* x = args.x + begin;
  for_vectors<T>(end - begin, [=](int64_t i, auto part) ORTHANT_BODY {
    store(hn::Mul(load(x + i, part), factor), x + i, part);
  });
}

ORTHANT_KERNEL(scale_elements, Scaling, float, f32)
ORTHANT_KERNEL(scale_elements, Scaling, Bf16, bf16)
ORTHANT_KERNEL(scale_elements, Scaling, double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/parallel.h"

namespace orthant {

HWY_EXPORT(add_bf16);
HWY_EXPORT(narrow);
HWY_EXPORT(widen);
ORTHANT_DISPATCH(scale_elements, Scaling, float, f32)
ORTHANT_DISPATCH(scale_elements, Scaling, Bf16, bf16)
ORTHANT_DISPATCH(scale_elements, Scaling, double, f64)

void add_bf16_into_f32(float* dst, const Bf16* src, int64_t count) {
  parallel_elements(count, [=](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_bf16)(dst + begin, src + begin, end - begin);
  });
}

void cast(const float* src, Bf16* dst, int64_t count) {
  parallel_elements(count, [=](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(narrow)(src + begin, dst + begin, end - begin);
  });
}

void cast(const Bf16* src, float* dst, int64_t count) {
  parallel_elements(count, [=](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(widen)(src + begin, dst + begin, end - begin);
  });
}

namespace {

template <class T>
void scale_in_parallel(const Scaling<T>& args, int64_t count) {
  parallel_elements(count, [&](int64_t begin, int64_t end) { scale_elements(args, begin, end); });
}

}  // namespace

void scale(float* x, int64_t count, double factor) { scale_in_parallel(Scaling<float>{x, factor}, count); }
void scale(Bf16* x, int64_t count, double factor) { scale_in_parallel(Scaling<Bf16>{x, factor}, count); }
void scale(double* x, int64_t count, double factor) { scale_in_parallel(Scaling<double>{x, factor}, count); }

}  // namespace orthant
#endif  // HWY_ONCE

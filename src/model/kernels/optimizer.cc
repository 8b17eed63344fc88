#include "model/kernels/optimizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/optimizer.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// The constants of a step, each broadcast to a vector.
template <class T>
struct StepVectors {
  explicit StepVectors(const AdamW<T>& args)
      : decay(splat<T>(1.0 - args.lr * args.weight_decay)),
        gradient_scale(splat<T>(*args.gradient_scale)),
        rest1(splat<T>(1.0 - args.beta1)),
        beta2(splat<T>(args.beta2)),
        rest2(splat<T>(1.0 - args.beta2)),
        step(splat<T>(args.lr / args.bias_correction1)),
        root_scale(splat<T>(1.0 / __builtin_sqrt(args.bias_correction2))),
        eps(splat<T>(args.eps)) {}

  Vec<T> decay, gradient_scale, rest1, beta2, rest2, step, root_scale, eps;
};

template <class T>
void adamw_elements(const AdamW<T>& args, int64_t begin, int64_t end) {
  const StepVectors<T> by(args);
  T* weights = args.weights + begin;
  const T* gradients = args.gradients + begin;
  T* first = args.m + begin;
  T* second = args.v + begin;
  Bf16* rounded = args.bf16_weights ? args.bf16_weights + begin : nullptr;
  for_vectors<T>(end - begin, [&](int64_t i, auto part) ORTHANT_BODY {
    const auto gradient = hn::Mul(load(gradients + i, part), by.gradient_scale);
    const auto old_m = load(first + i, part);
    const auto m = store(hn::MulAdd(by.rest1, hn::Sub(gradient, old_m), old_m), first + i, part);
    const auto square = hn::Mul(hn::Mul(gradient, gradient), by.rest2);
    const auto v = store(hn::MulAdd(by.beta2, load(second + i, part), square), second + i, part);
    const auto denominator = hn::MulAdd(hn::Sqrt(v), by.root_scale, by.eps);
    const auto decayed = hn::Mul(load(weights + i, part), by.decay);
    const auto weight = hn::NegMulAdd(by.step, hn::Div(m, denominator), decayed);
    store(weight, weights + i, part);
    if constexpr (sizeof(T) == sizeof(float)) {
      if (rounded) store(weight, rounded + i, part);
    }
  });
}

template <class T>
void sgd_elements(const Sgd<T>& args, int64_t begin, int64_t end) {
  const auto decay = splat<T>(args.weight_decay), scale = splat<T>(*args.gradient_scale);
  const auto momentum = splat<T>(args.momentum), lr = splat<T>(args.lr);
  T* weights = args.weights + begin;
  const T* gradients = args.gradients + begin;
  T* buffer = args.momentum_buffer ? args.momentum_buffer + begin : nullptr;
  Bf16* rounded = args.bf16_weights ? args.bf16_weights + begin : nullptr;
  for_vectors<T>(end - begin, [&](int64_t i, auto part) ORTHANT_BODY {
    const auto old = load(weights + i, part);
    auto update = hn::MulAdd(decay, old, hn::Mul(load(gradients + i, part), scale));
    if (buffer) update = store(hn::MulAdd(momentum, load(buffer + i, part), update), buffer + i, part);
    const auto weight = store(hn::NegMulAdd(lr, update, old), weights + i, part);
    if constexpr (sizeof(T) == sizeof(float)) {
      if (rounded) store(weight, rounded + i, part);
    }
  });
}

ORTHANT_KERNEL(adamw_elements, AdamW, float, f32)
ORTHANT_KERNEL(adamw_elements, AdamW, double, f64)
ORTHANT_KERNEL(sgd_elements, Sgd, float, f32)
ORTHANT_KERNEL(sgd_elements, Sgd, double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "base/errors.h"
#include "base/exact_sum.h"
#include "model/kernels/parallel.h"

namespace orthant {

ORTHANT_DISPATCH(adamw_elements, AdamW, float, f32)
ORTHANT_DISPATCH(adamw_elements, AdamW, double, f64)
ORTHANT_DISPATCH(sgd_elements, Sgd, float, f32)
ORTHANT_DISPATCH(sgd_elements, Sgd, double, f64)

template <class T>
void adamw(const AdamW<T>& args) {
  ORTHANT_CHECK(sizeof(T) == sizeof(float) || !args.bf16_weights, args.count);
  if (*args.gradient_scale == kSkipsUpdate) return;
  parallel_elements(args.count, [&](int64_t begin, int64_t end) { adamw_elements(args, begin, end); });
}

template void adamw(const AdamW<float>&);
template void adamw(const AdamW<double>&);

template <class T>
void sgd(const Sgd<T>& args) {
  ORTHANT_CHECK(sizeof(T) == sizeof(float) || !args.bf16_weights, args.count);
  if (*args.gradient_scale == kSkipsUpdate) return;
  parallel_elements(args.count, [&](int64_t begin, int64_t end) { sgd_elements(args, begin, end); });
}

template void sgd(const Sgd<float>&);
template void sgd(const Sgd<double>&);

void decide_update(const UpdateDecision& args) {
  *args.gradient_scale = gradient_scale_of(args, *args.loss, std::sqrt(ExactSum::value_of(args.squares)));
}

}  // namespace orthant
#endif  // HWY_ONCE

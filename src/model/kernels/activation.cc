#include "model/kernels/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/activation.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/simd-inl.h"
#include "model/kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

template <class T>
HWY_INLINE Vec<T> sigmoid(Vec<T> x) {
  // exp_to_88() requires arguments up to 88. For larger ones the sigmoid is below the smallest normal float anyway.
  const auto one = splat<T>(1.0);
  return hn::Div(one, hn::Add(one, exp_to_88<T>(hn::Min(hn::Neg(x), splat<T>(88.0)))));
}

template <class T>
void swiglu_forward_rows(const SwigluForward<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = args.gate_up + row * 2 * args.width;
    const T* up = gate + args.width;
    T* y = args.y + row * args.width;
    for_vectors<T>(args.width, [=](int64_t i, auto part) ORTHANT_BODY {
      const auto g = load(gate + i, part);
      store(hn::Mul(hn::Mul(g, sigmoid<T>(g)), load(up + i, part)), y + i, part);
    });
  }
}

template <class T>
void swiglu_backward_rows(const SwigluBackward<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = args.gate_up + row * 2 * args.width;
    const T* up = gate + args.width;
    const T* dy = args.dy + row * args.width;
    T* d_gate = args.d_gate_up + row * 2 * args.width;
    T* d_up = d_gate + args.width;
    for_vectors<T>(args.width, [=](int64_t i, auto part) ORTHANT_BODY {
      const auto one = splat<T>(1.0);
      const auto g = load(gate + i, part);
      const auto u = load(up + i, part);
      const auto d = load(dy + i, part);
      const auto s = sigmoid<T>(g);
      const auto d_silu = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
      store(hn::Mul(hn::Mul(d, u), d_silu), d_gate + i, part);
      store(hn::Mul(d, hn::Mul(g, s)), d_up + i, part);
    });
  }
}

#define ORTHANT_SWIGLU_KERNELS(T, tag)                        \
  ORTHANT_KERNEL(swiglu_forward_rows, SwigluForward, T, tag)  \
  ORTHANT_KERNEL(swiglu_backward_rows, SwigluBackward, T, tag)
ORTHANT_SWIGLU_KERNELS(float, f32)
ORTHANT_SWIGLU_KERNELS(Bf16, bf16)
ORTHANT_SWIGLU_KERNELS(double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/parallel.h"

namespace orthant {

#define ORTHANT_SWIGLU_DISPATCH(T, tag)                         \
  ORTHANT_DISPATCH(swiglu_forward_rows, SwigluForward, T, tag)  \
  ORTHANT_DISPATCH(swiglu_backward_rows, SwigluBackward, T, tag)
ORTHANT_SWIGLU_DISPATCH(float, f32)
ORTHANT_SWIGLU_DISPATCH(Bf16, bf16)
ORTHANT_SWIGLU_DISPATCH(double, f64)

template <class T>
void swiglu_forward(const SwigluForward<T>& args) {
  parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) { swiglu_forward_rows(args, begin, end); });
}

template <class T>
void swiglu_backward(const SwigluBackward<T>& args) {
  parallel_rows(args.rows, args.width, [&](int64_t begin, int64_t end) { swiglu_backward_rows(args, begin, end); });
}

template void swiglu_forward(const SwigluForward<float>&);
template void swiglu_forward(const SwigluForward<Bf16>&);
template void swiglu_forward(const SwigluForward<double>&);
template void swiglu_backward(const SwigluBackward<float>&);
template void swiglu_backward(const SwigluBackward<Bf16>&);
template void swiglu_backward(const SwigluBackward<double>&);

}  // namespace orthant
#endif  // HWY_ONCE

#include "model/kernels/loss.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/loss.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/exp-inl.h"
#include "model/kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// Terms that are summed in T's own arithmetic before the sum continues in double.
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

/// The sum of exp(logit - maximum).
template <class T>
HWY_INLINE double row_exp_sum(const T* logits, int64_t vocab, Vec<T> maximum) {
  double sum = 0.0;
  for (int64_t first = 0; first < vocab; first += kSumTerms) {
    const T* block = logits + first;
    sum += sum_vectors<T>(HWY_MIN(kSumTerms, vocab - first), [=](Vec<T> total, int64_t i, auto part) ORTHANT_BODY {
      const auto value = exp_to_88<T>(hn::Sub(load(block + i, part), maximum));
      return hn::Add(total, keep<T>(value, hn::Zero(Tag<T>()), part));
    });
  }
  return sum;
}

/// scale * (softmax - onehot) over one row of logits, of which the label may be elsewhere (outside [0, vocab)).
template <class T>
HWY_INLINE void gradient_row(T* logits, int64_t vocab, int64_t label, double top, double sum, double scale) {
  const auto maximum = splat<T>(top), factor = splat<T>(scale / sum);
  const bool here = label >= 0 && label < vocab;
  auto share = hn::Zero(Tag<T>());
  if (here) share = hn::Mul(exp_to_88<T>(hn::Sub(load(logits + label, Tail{1}), maximum)), factor);
  for_vectors<T>(vocab, [=](int64_t i, auto part) ORTHANT_BODY {
    store(hn::Mul(exp_to_88<T>(hn::Sub(load(logits + i, part), maximum)), factor), logits + i, part);
  });
  if (here) store(hn::Sub(share, splat<T>(scale)), logits + label, Tail{1});
}

template <class T>
HWY_INLINE void clear_row(T* logits, int64_t vocab) {
  __builtin_memset(logits, 0, static_cast<size_t>(vocab) * sizeof(T));
}

template <class T>
void cross_entropy_rows(const SoftmaxCrossEntropy<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* logits = args.logits + row * args.vocab;
    const int64_t label = args.labels[row];
    if (label == kIgnoredLabel) {
      args.losses[row] = 0.0;
      if (args.write_gradient) clear_row(logits, args.vocab);
      continue;
    }
    const auto top = static_cast<double>(row_maximum(logits, args.vocab));
    const double sum = row_exp_sum(logits, args.vocab, splat<T>(top));
    const auto picked = static_cast<double>(hn::GetLane(load(logits + label, Tail{1})));
    args.losses[row] = __builtin_log(sum) + (top - picked);
    if (args.write_gradient) gradient_row(logits, args.vocab, label, top, sum, args.scale);
  }
}

template <class T>
void statistics_rows(const SoftmaxPart<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* logits = args.logits + row * args.vocab;
    const int64_t label = args.labels[row] - args.first;
    const Wide<T> top = row_maximum(logits, args.vocab);
    double picked = 0;
    if (label >= 0 && label < args.vocab) picked = static_cast<double>(hn::GetLane(load(logits + label, Tail{1})));
    args.statistics[row] = {static_cast<double>(top), row_exp_sum(logits, args.vocab, splat<T>(top)), picked};
  }
}

template <class T>
void gradient_rows(const SoftmaxPart<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* logits = args.logits + row * args.vocab;
    const auto& [maximum, sum, picked] = args.statistics[row];
    if (args.labels[row] == kIgnoredLabel) {
      clear_row(logits, args.vocab);
    } else {
      gradient_row(logits, args.vocab, args.labels[row] - args.first, maximum, sum, args.scale);
    }
  }
}

ORTHANT_KERNEL(statistics_rows, SoftmaxPart, float, f32)
ORTHANT_KERNEL(statistics_rows, SoftmaxPart, Bf16, bf16)
ORTHANT_KERNEL(statistics_rows, SoftmaxPart, double, f64)
ORTHANT_KERNEL(gradient_rows, SoftmaxPart, float, f32)
ORTHANT_KERNEL(gradient_rows, SoftmaxPart, Bf16, bf16)
ORTHANT_KERNEL(gradient_rows, SoftmaxPart, double, f64)
ORTHANT_KERNEL(cross_entropy_rows, SoftmaxCrossEntropy, float, f32)
ORTHANT_KERNEL(cross_entropy_rows, SoftmaxCrossEntropy, Bf16, bf16)
ORTHANT_KERNEL(cross_entropy_rows, SoftmaxCrossEntropy, double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/parallel.h"

namespace orthant {

ORTHANT_DISPATCH(cross_entropy_rows, SoftmaxCrossEntropy, float, f32)
ORTHANT_DISPATCH(cross_entropy_rows, SoftmaxCrossEntropy, Bf16, bf16)
ORTHANT_DISPATCH(cross_entropy_rows, SoftmaxCrossEntropy, double, f64)

ORTHANT_DISPATCH(statistics_rows, SoftmaxPart, float, f32)
ORTHANT_DISPATCH(statistics_rows, SoftmaxPart, Bf16, bf16)
ORTHANT_DISPATCH(statistics_rows, SoftmaxPart, double, f64)
ORTHANT_DISPATCH(gradient_rows, SoftmaxPart, float, f32)
ORTHANT_DISPATCH(gradient_rows, SoftmaxPart, Bf16, bf16)
ORTHANT_DISPATCH(gradient_rows, SoftmaxPart, double, f64)

template <class T>
void softmax_statistics(const SoftmaxPart<T>& args) {
  parallel_rows(args.rows, args.vocab, [&](int64_t begin, int64_t end) { statistics_rows(args, begin, end); });
}

template <class T>
void softmax_gradient(const SoftmaxPart<T>& args) {
  parallel_rows(args.rows, args.vocab, [&](int64_t begin, int64_t end) { gradient_rows(args, begin, end); });
}

template void softmax_statistics(const SoftmaxPart<float>&);
template void softmax_statistics(const SoftmaxPart<Bf16>&);
template void softmax_statistics(const SoftmaxPart<double>&);
template void softmax_gradient(const SoftmaxPart<float>&);
template void softmax_gradient(const SoftmaxPart<Bf16>&);
template void softmax_gradient(const SoftmaxPart<double>&);

template <class T>
int64_t softmax_cross_entropy(const SoftmaxCrossEntropy<T>& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const int64_t label = args.labels[row];
    if (label != kIgnoredLabel && (label < 0 || label >= args.vocab)) return row;
  }
  parallel_rows(args.rows, args.vocab, [&](int64_t begin, int64_t end) { cross_entropy_rows(args, begin, end); });
  return -1;
}

template int64_t softmax_cross_entropy(const SoftmaxCrossEntropy<float>&);
template int64_t softmax_cross_entropy(const SoftmaxCrossEntropy<Bf16>&);
template int64_t softmax_cross_entropy(const SoftmaxCrossEntropy<double>&);

}  // namespace orthant
#endif  // HWY_ONCE

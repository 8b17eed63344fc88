#include "model/kernels/loss.h"

#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/loss.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/loss_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// The statistics of one row of products. The label may be in another shard (outside [0, vocab)).
template <class T, bool kCapped>
HWY_INLINE SoftmaxStatistics row_statistics(const T* products, int64_t vocab, int64_t label, const OutputLoss& loss) {
  const Logits<T, kCapped> logits(loss);
  const auto number = [](Vec<T> value) ORTHANT_BODY { return static_cast<double>(hn::GetLane(value)); };
  const double top = number(logits.of(splat<T>(static_cast<double>(row_maximum(products, vocab)))));
  SoftmaxStatistics found{top, row_exp_sum(products, vocab, splat<T>(top), logits), 0, 0};
  if (label >= 0 && label < vocab) found.picked = number(logits.of(load(products + label, Tail{1})));
  if (loss.smoothing > 0) found.total = row_sum(products, vocab, logits);
  return found;
}

/// Factors of a row's gradient: `exponentials` multiplies exp(logit - maximum), `uniform` is subtracted for every
/// logit, and `label` is subtracted for the label's logit instead.
struct RowFactors {
  double exponentials, uniform, label;
};
HWY_INLINE RowFactors row_factors(const SoftmaxStatistics& whole, const OutputLoss& loss, int64_t vocabulary,
                                  double scale) {
  RowFactors f{scale / whole.sum, 0, scale};
  if (loss.z_weight > 0) f.exponentials *= 1 + 2 * loss.z_weight * (__builtin_log(whole.sum) + whole.maximum);
  if (loss.smoothing > 0) {
    f.uniform = scale * loss.smoothing / static_cast<double>(vocabulary);
    f.label = scale * (1 - loss.smoothing) + f.uniform;
  }
  return f;
}

/// Overwrites one row of products with the gradient. The label may be in another shard.
template <class T, bool kCapped, bool kSmoothed>
HWY_INLINE void gradient_row(T* products, int64_t vocab, int64_t label, double top, const RowFactors& f,
                             const OutputLoss& loss) {
  const Logits<T, kCapped> logits(loss);
  const auto maximum = splat<T>(top), factor = splat<T>(f.exponentials);
  const auto gradient = [=](Vec<T> product, Vec<T> taken, auto takes) ORTHANT_BODY {
    const auto one = splat<T>(1);
    auto bend = one;
    auto logit = product;
    if constexpr (kCapped) {
      bend = logits.tanh(product);
      logit = hn::Mul(logits.cap, bend);
    }
    auto value = hn::Mul(exp_to_88<T>(hn::Sub(logit, maximum)), factor);
    if constexpr (takes()) value = hn::Sub(value, taken);
    if constexpr (kCapped) value = hn::Mul(value, hn::NegMulAdd(bend, bend, one));
    return value;
  };
  const auto uniform = splat<T>(f.uniform);
  const bool here = label >= 0 && label < vocab;
  auto labels = hn::Zero(Tag<T>());
  if (here) labels = gradient(load(products + label, Tail{1}), splat<T>(f.label), std::bool_constant<true>());
  for_vectors<T>(vocab, [=](int64_t i, auto part) ORTHANT_BODY {
    store(gradient(load(products + i, part), uniform, std::bool_constant<kSmoothed>()), products + i, part);
  });
  if (here) store(labels, products + label, Tail{1});
}

template <class T>
SoftmaxStatistics statistics_of(const T* products, int64_t vocab, int64_t label, const OutputLoss& loss) {
  return loss.softcap > 0 ? row_statistics<T, true>(products, vocab, label, loss)
                          : row_statistics<T, false>(products, vocab, label, loss);
}

template <class T>
void write_gradient(T* products, int64_t vocab, int64_t label, double top, const RowFactors& f,
                    const OutputLoss& loss) {
  if (loss.softcap > 0) return gradient_row<T, true, true>(products, vocab, label, top, f, loss);
  if (loss.smoothing > 0) return gradient_row<T, false, true>(products, vocab, label, top, f, loss);
  gradient_row<T, false, false>(products, vocab, label, top, f, loss);
}

template <class T>
void cross_entropy_rows(const SoftmaxCrossEntropy<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* products = args.logits + row * args.vocab;
    const int64_t label = args.labels[row];
    if (label == kIgnoredLabel) {
      args.losses[row] = 0.0;
      if (args.write_gradient) clear_row(products, args.vocab);
      continue;
    }
    const SoftmaxStatistics whole = statistics_of(products, args.vocab, label, args.loss);
    args.losses[row] = loss_of(whole, args.loss, args.vocab);
    if (!args.write_gradient) continue;
    write_gradient(products, args.vocab, label, whole.maximum, row_factors(whole, args.loss, args.vocab, args.scale),
                   args.loss);
  }
}

template <class T>
void statistics_rows(const SoftmaxShard<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    args.statistics[row] =
        statistics_of(args.logits + row * args.vocab, args.vocab, args.labels[row] - args.first, args.loss);
  }
}

template <class T>
void loss_rows(const SoftmaxShard<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* products = args.logits + row * args.vocab;
    const SoftmaxStatistics& whole = args.statistics[row];
    if (args.labels[row] == kIgnoredLabel) {
      args.losses[row] = 0.0;
      if (args.write_gradient) clear_row(products, args.vocab);
      continue;
    }
    args.losses[row] = loss_of(whole, args.loss, args.vocabulary);
    if (!args.write_gradient) continue;
    write_gradient(products, args.vocab, args.labels[row] - args.first, whole.maximum,
                   row_factors(whole, args.loss, args.vocabulary, args.scale), args.loss);
  }
}

ORTHANT_KERNEL(statistics_rows, SoftmaxShard, float, f32)
ORTHANT_KERNEL(statistics_rows, SoftmaxShard, Bf16, bf16)
ORTHANT_KERNEL(statistics_rows, SoftmaxShard, double, f64)
ORTHANT_KERNEL(loss_rows, SoftmaxShard, float, f32)
ORTHANT_KERNEL(loss_rows, SoftmaxShard, Bf16, bf16)
ORTHANT_KERNEL(loss_rows, SoftmaxShard, double, f64)
ORTHANT_KERNEL(cross_entropy_rows, SoftmaxCrossEntropy, float, f32)
ORTHANT_KERNEL(cross_entropy_rows, SoftmaxCrossEntropy, Bf16, bf16)
ORTHANT_KERNEL(cross_entropy_rows, SoftmaxCrossEntropy, double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cmath>

#include "model/kernels/parallel.h"

namespace orthant {

ORTHANT_DISPATCH(cross_entropy_rows, SoftmaxCrossEntropy, float, f32)
ORTHANT_DISPATCH(cross_entropy_rows, SoftmaxCrossEntropy, Bf16, bf16)
ORTHANT_DISPATCH(cross_entropy_rows, SoftmaxCrossEntropy, double, f64)
ORTHANT_DISPATCH(statistics_rows, SoftmaxShard, float, f32)
ORTHANT_DISPATCH(statistics_rows, SoftmaxShard, Bf16, bf16)
ORTHANT_DISPATCH(statistics_rows, SoftmaxShard, double, f64)
ORTHANT_DISPATCH(loss_rows, SoftmaxShard, float, f32)
ORTHANT_DISPATCH(loss_rows, SoftmaxShard, Bf16, bf16)
ORTHANT_DISPATCH(loss_rows, SoftmaxShard, double, f64)

double loss_of(const SoftmaxStatistics& whole, const OutputLoss& loss, int64_t vocabulary) {
  const double log_sum = std::log(whole.sum);
  double value = log_sum + (whole.maximum - whole.picked);
  if (loss.smoothing > 0) value += loss.smoothing * (whole.picked - whole.total / static_cast<double>(vocabulary));
  if (loss.z_weight > 0) value += loss.z_weight * (log_sum + whole.maximum) * (log_sum + whole.maximum);
  return value;
}

template <class T>
void softmax_statistics(const SoftmaxShard<T>& args) {
  parallel_rows(args.rows, args.vocab, [&](int64_t begin, int64_t end) { statistics_rows(args, begin, end); });
}

template <class T>
void softmax_loss(const SoftmaxShard<T>& args) {
  parallel_rows(args.rows, args.vocab, [&](int64_t begin, int64_t end) { loss_rows(args, begin, end); });
}

template void softmax_statistics(const SoftmaxShard<float>&);
template void softmax_statistics(const SoftmaxShard<Bf16>&);
template void softmax_statistics(const SoftmaxShard<double>&);
template void softmax_loss(const SoftmaxShard<float>&);
template void softmax_loss(const SoftmaxShard<Bf16>&);
template void softmax_loss(const SoftmaxShard<double>&);

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

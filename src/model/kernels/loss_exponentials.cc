#include "model/kernels/loss_exponentials.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/kernels/loss_exponentials.cc"
#include "hwy/foreach_target.h"
#include "model/kernels/loss_rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace orthant {
namespace HWY_NAMESPACE {

/// Writes the exponentials and slopes of one row, whose maximum is known, and returns the sum of exponentials. Sums in
/// the order of row_exp_sum().
template <class T, bool kCapped>
HWY_INLINE double exponentials_row(const Wide<T>* products, int64_t vocab, double top, T* exponentials, T* slopes,
                                   const OutputLoss& loss) {
  const Logits<T, kCapped> logits(loss);
  const auto maximum = splat<T>(top), one = splat<T>(1);
  double sum = 0.0;
  for (int64_t first = 0; first < vocab; first += kSumTerms) {
    const auto body = [=](Vec<T> total, int64_t i, auto part) ORTHANT_BODY {
      const int64_t at = first + i;
      auto logit = load(products + at, part), slope = one;
      if constexpr (kCapped) {
        const auto bend = logits.tanh(logit);
        logit = hn::Mul(logits.cap, bend);
        slope = hn::NegMulAdd(bend, bend, one);
      }
      const auto value = exp_to_88<T>(hn::Sub(logit, maximum));
      if (exponentials != nullptr) store(kCapped ? hn::Mul(value, slope) : value, exponentials + at, part);
      if (kCapped && slopes != nullptr) store(slope, slopes + at, part);
      return hn::Add(total, keep<T>(value, hn::Zero(Tag<T>()), part));
    };
    sum += sum_vectors<T>(HWY_MIN(kSumTerms, vocab - first), body);
  }
  return sum;
}

template <class T, bool kCapped>
HWY_INLINE void exponentials_of(const SoftmaxExponentials<T>& args, int64_t row) {
  const Wide<T>* products = args.logits + row * args.vocab;
  const auto kept = [&](T* of_all) { return of_all == nullptr ? nullptr : of_all + row * args.vocab; };
  T* exponentials = kept(args.exponentials);
  const int64_t label = args.labels[row] - args.first;
  const bool here = label >= 0 && label < args.vocab;
  const Logits<Wide<T>, kCapped> logits(args.loss);
  const auto number = [](Vec<T> value) ORTHANT_BODY { return static_cast<double>(hn::GetLane(value)); };
  SoftmaxStatistics& found = args.statistics[row];
  if (!args.has_maximum) {
    const auto top = static_cast<double>(row_maximum<Wide<T>>(products, args.vocab));
    found.maximum = number(logits.of(splat<T>(top)));
  }
  found.picked = here ? number(logits.of(load(products + label, Tail{1}))) : 0;
  found.total = 0;
  if (kCapped && args.label_slopes != nullptr) {
    const double bend = here ? number(logits.tanh(load(products + label, Tail{1}))) : 0;
    args.label_slopes[row] = 1 - bend * bend;
  }
  if (args.loss.smoothing > 0) found.total = row_sum<Wide<T>>(products, args.vocab, logits);
  found.sum =
      exponentials_row<T, kCapped>(products, args.vocab, found.maximum, exponentials, kept(args.slopes), args.loss);
  if (exponentials == nullptr) return;
  if (args.labels[row] == kIgnoredLabel) {
    clear_row(exponentials, args.vocab);
    if (T* slopes = kept(args.slopes)) clear_row(slopes, args.vocab);
  }
  if (here) exponentials[label] = T{};
}

template <class T>
void exponentials_rows(const SoftmaxExponentials<T>& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    if (args.loss.softcap > 0) {
      exponentials_of<T, true>(args, row);
    } else {
      exponentials_of<T, false>(args, row);
    }
  }
}

ORTHANT_KERNEL(exponentials_rows, SoftmaxExponentials, float, f32)
ORTHANT_KERNEL(exponentials_rows, SoftmaxExponentials, Bf16, bf16)
ORTHANT_KERNEL(exponentials_rows, SoftmaxExponentials, double, f64)

}  // namespace HWY_NAMESPACE
}  // namespace orthant
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "model/kernels/parallel.h"

namespace orthant {

ORTHANT_DISPATCH(exponentials_rows, SoftmaxExponentials, float, f32)
ORTHANT_DISPATCH(exponentials_rows, SoftmaxExponentials, Bf16, bf16)
ORTHANT_DISPATCH(exponentials_rows, SoftmaxExponentials, double, f64)

template <class T>
void softmax_exponentials(const SoftmaxExponentials<T>& args) {
  parallel_rows(args.rows, args.vocab, [&](int64_t begin, int64_t end) { exponentials_rows(args, begin, end); });
}

template void softmax_exponentials(const SoftmaxExponentials<float>&);
template void softmax_exponentials(const SoftmaxExponentials<Bf16>&);
template void softmax_exponentials(const SoftmaxExponentials<double>&);

}  // namespace orthant
#endif  // HWY_ONCE

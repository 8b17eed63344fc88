// The updates of AdamW and SGD, each in one pass over state, weights, and the bf16 copy that the model computes with;
// and the decision whether a step updates.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// The factor that reduces a norm to max_norm, as in torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)).
/// It is 1 when max_norm is 0. Device code may call it.
constexpr double clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return max_norm > 0 && factor < 1 ? factor : 1.0;
}

/// True if a step with this loss and norm of the gradients must not update the weights: one of them is not finite, or
/// the norm is above a limit, where 0 is no limit. Device code may call it.
constexpr bool must_skip_update(double loss, double norm, double skip_above_norm) {
  const double zero = loss - loss + (norm - norm);  // NaN unless both are finite
  return zero != 0 || (skip_above_norm > 0 && norm > skip_above_norm);
}

/// A gradient scale with which an update changes nothing.
inline constexpr double kSkipsUpdate = -1;

/// The values that decide about the update of a step. All pointers are to memory of the device.
struct UpdateDecision {
  const double* loss;
  const double* squares;   // of all gradients: ExactSum::numbers()
  double skip_above_norm;  // as for must_skip_update()
  double max_norm;         // as for clip_factor()
  double clipped_norm;     // the norm by which to clip; negative: that of these gradients
  double* gradient_scale;  // out: the clip factor, or kSkipsUpdate
};
/// The scale for a step with this loss and norm. Device code may call it.
constexpr double gradient_scale_of(const UpdateDecision& args, double loss, double norm) {
  if (must_skip_update(loss, norm, args.skip_above_norm)) return kSkipsUpdate;
  return clip_factor(args.clipped_norm < 0 ? norm : args.clipped_norm, args.max_norm);
}
/// Writes the scale.
void decide_update(const UpdateDecision& args);

/// A slice of `count` elements with the same hyperparameters. T is float or double.
template <class T>
struct AdamW {
  T* weights;          // master weights, updated
  const T* gradients;
  T* m;                // first moment, updated
  T* v;                // second moment, updated
  int64_t count;
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  double bias_correction1;       // 1 - beta1^step, steps counted from 1
  double bias_correction2;       // 1 - beta2^step
  const double* gradient_scale;  // one number: the factor applied to every gradient first, or kSkipsUpdate
  Bf16* bf16_weights = nullptr;  // optional out: the new weights, rounded
};

/// Loshchilov & Hutter 2019, algorithm 2, in PyTorch's form: w *= 1 - lr * decay, then w -= lr / bc1 * m / (sqrt(v) /
/// sqrt(bc2) + eps). The update is elementwise, so its bits depend neither on threads nor on how the parameter is
/// sliced.
template <class T>
void adamw(const AdamW<T>& args);

/// A slice of `count` elements with the same hyperparameters. T is float or double.
template <class T>
struct Sgd {
  T* weights;          // master weights, updated
  const T* gradients;
  T* momentum_buffer;  // updated; zero before the first step; null without momentum
  int64_t count;
  double lr;
  double momentum;
  double weight_decay;
  const double* gradient_scale;  // one number: the factor applied to every gradient first, or kSkipsUpdate
  Bf16* bf16_weights = nullptr;  // optional out: the new weights, rounded
};

/// torch.optim.SGD without dampening: g += decay * w, then b = momentum * b + g, then w -= lr * b. So weight decay acts
/// through the momentum, unlike AdamW's. The update is elementwise, as that of adamw().
template <class T>
void sgd(const Sgd<T>& args);

}  // namespace orthant

// The updates of AdamW and SGD, each in one pass over state, weights, and the bf16 copy that the model computes with.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

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
  double bias_correction1;      // 1 - beta1^step, steps counted from 1
  double bias_correction2;      // 1 - beta2^step
  double gradient_scale = 1.0;  // factor applied to every gradient first; the clip factor
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
  double gradient_scale = 1.0;   // factor applied to every gradient first; the clip factor
  Bf16* bf16_weights = nullptr;  // optional out: the new weights, rounded
};

/// torch.optim.SGD without dampening: g += decay * w, then b = momentum * b + g, then w -= lr * b. So weight decay acts
/// through the momentum, unlike AdamW's. The update is elementwise, as that of adamw().
template <class T>
void sgd(const Sgd<T>& args);

}  // namespace orthant

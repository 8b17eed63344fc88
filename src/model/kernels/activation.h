// SwiGLU, the gated activation between the projections of a LLaMA feed-forward block, and its gradient.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

template <class T>
struct SwigluForward {
  const T* gate_up;  // [rows, 2 * width]: gate, then up
  int64_t rows;
  int64_t width;
  T* y;  // out, [rows, width]
};

/// y = silu(gate) * up with silu(g) = g / (1 + exp(-g)). T is float, Bf16 or double.
template <class T>
void swiglu_forward(const SwigluForward<T>& args);

template <class T>
struct SwigluBackward {
  const T* dy;       // [rows, width]
  const T* gate_up;  // [rows, 2 * width], as given to the forward pass
  int64_t rows;
  int64_t width;
  T* d_gate_up;  // out, [rows, 2 * width]; may be gate_up itself
};

/// The gradients of gate and up, recomputed from the input of the forward pass, so that nothing else is saved.
template <class T>
void swiglu_backward(const SwigluBackward<T>& args);

}  // namespace orthant

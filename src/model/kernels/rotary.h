// Rotary position embedding, together with the change of layout from one projected row per token to one matrix per
// head.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// A projected row holds the query heads, then the key heads, then the value heads: (H + 2 * Hk) * D elements.
struct RotaryShape {
  int64_t batch;     // B
  int64_t tokens;    // T
  int64_t heads;     // H
  int64_t kv_heads;  // Hk, divides H
  int64_t head_dim;  // D, even
};

/// The angles. Element k is paired with element k + D/2 (the half-split convention of Hugging Face's llama).
template <class T>
struct RotaryTables {
  const Wide<T>* cos;        // [max_position, D/2]; null (with sin) for a model without rotary embedding
  const Wide<T>* sin;        // [max_position, D/2]
  int64_t max_position;      // a position outside [0, max_position) is a LogicError
  const int64_t* positions;  // [B, T] or [T]
  bool positions_per_batch;  // true: [B, T]
};

template <class T>
struct RopeSplitForward {
  RotaryShape shape;
  RotaryTables<T> tables;
  const T* qkv_BTC;  // [B, T, (H + 2 Hk) D]
  T* q_BHTD;         // out, dense
  T* k_BHTD;         // out, dense, Hk heads
  T* v_BHTD;         // out, dense, Hk heads
};

/// Splits the projection by heads, rotates q and k by their positions' angles, copies v. T is float, Bf16 or double.
template <class T>
void rope_split_forward(const RopeSplitForward<T>& args);

template <class T>
struct RopeSplitBackward {
  RotaryShape shape;
  RotaryTables<T> tables;
  const T* dq_BHTD;
  const T* dk_BHTD;         // Hk heads, or H heads when kv_per_query_head
  const T* dv_BHTD;         // the same
  bool kv_per_query_head;   // dk and dv come per query head; each group of H / Hk heads is summed in order of heads
  T* dqkv_BTC;              // out, [B, T, (H + 2 Hk) D], every element written
};

/// The transpose of rope_split_forward: rotates back and gathers the gradient of the projection.
template <class T>
void rope_split_backward(const RopeSplitBackward<T>& args);

}  // namespace orthant

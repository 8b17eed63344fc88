// Rotary position embedding, fused with the change of layout from one projected row per token to separate q, k and v.
#pragma once

#include "model/kernels/element.h"

namespace orthant {

/// Sizes of the projection. A projected row holds the query heads, the key heads and the value heads: (H + 2 * Hk) * D
/// elements.
struct RotaryShape {
  int64_t batch;     // B
  int64_t tokens;    // T
  int64_t heads;     // H
  int64_t kv_heads;  // Hk; must divide H
  int64_t head_dim;  // D; even if heads are rotated
  bool by_token = false;  // q, k, v and their gradients are [B, T, heads, D] in memory, in place of [B, heads, T, D]

  /// Offset of a head of a token in q, k, v or their gradients with this number of heads.
  constexpr int64_t offset(int64_t sequence, int64_t num_heads, int64_t head, int64_t token) const {
    return by_token ? ((sequence * tokens + token) * num_heads + head) * head_dim
                    : ((sequence * num_heads + head) * tokens + token) * head_dim;
  }
};

/// The rotation angles. Element k is paired with element k + D/2 (the half-split convention of Hugging Face's LLaMA).
template <class T>
struct RotaryTables {
  const Wide<T>* cos;        // [max_position, D/2]; null together with sin for a model without rotary embedding
  const Wide<T>* sin;        // [max_position, D/2]
  int64_t max_position;      // a position outside [0, max_position) is a LogicError
  const int64_t* positions;  // [B, T] or [T]
  bool positions_per_batch;  // true: positions are [B, T]
};

template <class T>
struct RopeSplitForward {
  RotaryShape shape;
  RotaryTables<T> tables;
  const T* qkv_BTC;  // [B, T, (H + 2 Hk) D]
  T* q;              // out, dense, in the layout that shape.by_token selects
  T* k;              // out, dense, Hk heads
  T* v;              // out, dense, Hk heads
};

/// Splits the projection by heads, rotates q and k by the angles of their positions, and copies v. T is float, Bf16 or
/// double.
template <class T>
void rope_split_forward(const RopeSplitForward<T>& args);

template <class T>
struct RopeSplitBackward {
  RotaryShape shape;
  RotaryTables<T> tables;
  const T* dq;
  const T* dk;              // Hk heads, or H heads if kv_per_query_head
  const T* dv;              // as dk
  bool kv_per_query_head;   // dk and dv have H heads; each group of H / Hk heads is summed in order
  T* dqkv_BTC;              // out, [B, T, (H + 2 Hk) D]; every element is written
};

/// The transpose of rope_split_forward: rotates back and assembles the gradient of the projection.
template <class T>
void rope_split_backward(const RopeSplitBackward<T>& args);

}  // namespace orthant

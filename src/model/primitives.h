// The handful of operators that a model calls. One device binds the plain or the fused ones; a mesh binds sharded ones.
//
// Shape letters: B sequences, T tokens of a sequence, C hidden size, O rows of a weight, H query heads, K key/value
// heads, D head size, I intermediate size, V vocabulary. Letters name logical dims, never shards.
#pragma once

#include "base/output_loss.h"
#include "model/visibility.h"
#include "model/weights.h"

#include <ATen/core/Tensor.h>

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace orthant {

/// How each sequence of a microbatch is filled, where not with one text to its end; see visibility_of().
struct Packing {
  std::vector<std::vector<int64_t>> document_starts;
  std::vector<int64_t> lengths;
};

/// One microbatch on one device. Labels of -100 carry no loss.
struct Microbatch {
  at::Tensor tokens_BT;     // int64
  at::Tensor labels_BT;     // int64
  at::Tensor positions_BT;  // int64: position of each token in its own document, for rotary positions
  at::Tensor places_T;      // int64: place of each token in its sequence; undefined where all are here, in order
  std::shared_ptr<const Packing> packing;  // none: every sequence is one text
  at::Tensor samples_B;     // int64: global number of each sequence, the key of dropout
  int64_t sequence_length = 0;  // of a whole sequence, whatever part of it is here
  double loss_scale = 1.0;      // 1 / valid labels of the whole global batch
  int64_t step = 0;             // optimizer step, another key of dropout; 0: not training, nothing is dropped
};

/// What attention needs beside its input.
struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  at::Tensor cos_PD, sin_PD;  // float32 (float64 for float64): [max positions, D/2]
  VisibilityRule rule;
  /// A layer's Linformer projections, the rows of the tokens that are here, [T, K_p]; none: full attention.
  const Weight *linformer_k = nullptr, *linformer_v = nullptr;

  /// Of scores: 1 / sqrt(D).
  double scale() const { return 1 / std::sqrt(static_cast<double>(head_dim)); }
};

/// What queries at these places of the microbatch's sequences see.
Visibility visibility(const Microbatch& batch, const VisibilityRule& rule, std::span<const int64_t> places);

/// Which dropout mask: (seed, step, site) choose the stream, sample x sequence_length + place and the channel the
/// element, so that no cut of batch or sequence changes what is dropped.
struct DropoutKey {
  double probability = 0;
  uint64_t seed = 0;
  uint64_t site = 0;
  int64_t width = 0, first_channel = 0;  // where only some channels are here: of how many, and from which on
};

struct Primitives {
  /// Rows of the table: [B,T] -> [B,T,C].
  std::function<at::Tensor(const at::Tensor& tokens_BT, const Weight& table_VC)> embedding;
  /// (x, s): s = input + residual (input itself where residual is undefined), x = RMSNorm(s) * gain.
  std::function<std::pair<at::Tensor, at::Tensor>(const at::Tensor& input_BTC, const at::Tensor& residual_BTC,
                                                  const Weight& gain_C, double eps)>
      add_norm;
  /// x W^T, and W's bias where it has one: [B,T,C] -> [B,T,O].
  std::function<at::Tensor(const at::Tensor& x_BTC, const Weight& weight_OC)> linear;
  /// Rotary positions, then grouped-query attention to what the rule lets each token see; rows of the input are q
  /// heads, k heads, v heads. [B,T,(H+2K)D] -> [B,T,HD].
  std::function<at::Tensor(const at::Tensor& qkv, const Microbatch& batch, const AttentionShape& shape)> attention;
  /// silu(gate) * up; rows of the input are gate, up: [B,T,2I] -> [B,T,I].
  std::function<at::Tensor(const at::Tensor& gate_up)> swiglu;
  /// Zeroes elements by key and scales the rest by 1/(1-p).
  std::function<at::Tensor(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key)> dropout;
  /// Sum over valid labels of -log softmax(x W^T)[label], with what `loss` asks for, times batch.loss_scale; a scalar
  /// in float64. Its gradient must be 1: the loss is where backward starts.
  std::function<at::Tensor(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch,
                           const OutputLoss& loss)>
      cross_entropy;
};

/// Built from plain ATen operators and autograd, any dtype: slow, short, the oracle of every other binding.
Primitives plain_primitives();
/// One-pass kernels and products that add weight gradients straight into their buffers. CPU.
Primitives fused_primitives();
Primitives fused_primitives(std::shared_ptr<const struct AttentionCore> core);

}  // namespace orthant

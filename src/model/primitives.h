// The operators that the transformer calls. One device binds the plain or the fused ones; a mesh binds sharded ones.
//
// Shape letters: B sequences, T tokens of a sequence, C hidden size, O rows of a weight, H query heads, K key/value
// heads, D head size, I intermediate size, V vocabulary. The letters name logical dims, never shards.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/output_loss.h"
#include "model/attention.h"
#include "model/visibility.h"
#include "model/weights.h"

namespace orthant {

/// Documents and padding of each sequence of a microbatch; see compute_visibility(). Without one, every sequence is one
/// text of full length.
struct Packing {
  std::vector<std::vector<int64_t>> document_starts;
  std::vector<int64_t> lengths;
};

/// One microbatch on one device. Labels of -100 carry no loss.
struct Microbatch {
  at::Tensor tokens_BT;     // int64
  at::Tensor labels_BT;     // int64
  at::Tensor positions_BT;  // int64: position of each token in its own document
  // int64: position of each token in its sequence; undefined if all T are here, in order
  at::Tensor sequence_positions_T;
  std::shared_ptr<const Packing> packing;  // null: every sequence is one text
  at::Tensor samples_B;     // int64: global number of each sequence, a key of dropout
  int64_t sequence_length = 0;  // length of the unsharded sequence
  double loss_scale = 1.0;      // 1 / number of valid labels in the global batch
  int64_t step = 0;             // optimizer step, a key of dropout; 0 = not training, no dropout
};

/// Sizes, rotary tables and rules of attention.
struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0, max_positions = 0;
  at::Tensor cos_PD, sin_PD;  // float32 (float64 for float64): [max positions, D/2]; undefined without rotary positions
  VisibilityRule rule;
  double softcap = 0;  // of the scores; 0: no cap
  int64_t layer = 0;  // number of the block, the key of its cache
  /// The layer's Linformer projections, restricted to the rows of this rank's tokens, [T, K_p]. Null: full attention.
  const Weight *linformer_k = nullptr, *linformer_v = nullptr;

  /// The scores, with the factor 1 / sqrt(D).
  ScoreRule scores() const { return {1 / std::sqrt(static_cast<double>(head_dim)), softcap}; }
};

/// The keys visible to queries at these positions of the microbatch's sequences.
Visibility visibility(const Microbatch& batch, const VisibilityRule& rule, std::span<const int64_t> positions);

/// Selects a dropout mask. (seed, step, site) select the random stream; sample x sequence_length + position and the
/// channel select the element. The mask therefore does not depend on how batch and sequence are sharded.
struct DropoutKey {
  double probability = 0;
  uint64_t seed = 0;
  uint64_t site = 0;
  int64_t width = 0, first_channel = 0;  // shard of the channels: unsharded width (0 = unsharded) and first channel
};

struct Primitives {
  /// Looks up rows of the table: [B,T] -> [B,T,C].
  std::function<at::Tensor(const at::Tensor& tokens_BT, const Weight& table_VC)> embedding;
  /// Adds to each token's row the table's row of its position (batch.positions_BT): [B,T,C] -> [B,T,C].
  std::function<at::Tensor(const at::Tensor& x_BTC, const Microbatch& batch, const Weight& table_PC)> add_positions;
  /// A norm of norms.h over the residual stream, and the addition before it. Returns (x, s): s = input + residual (s =
  /// input if residual is undefined), and x = the norm of s.
  std::function<std::pair<at::Tensor, at::Tensor>(const std::string& function, const at::Tensor& input_BTC,
                                                  const at::Tensor& residual_BTC, const Weight& gain_C, double eps)>
      add_norm;
  /// x W^T, plus W's bias if it has one: [B,T,C] -> [B,T,O].
  std::function<at::Tensor(const at::Tensor& x_BTC, const Weight& weight_OC)> linear;
  /// The backward of linear(x, W) alone, for a gradient dy of its output: accumulates the gradients of W and its bias,
  /// and returns that of x.
  std::function<at::Tensor(const at::Tensor& x_BTC, const Weight& weight_OC, const at::Tensor& dy_BTO)> linear_backward;
  /// Applies rotary positions if the model has them, then grouped-query attention under the rule's visibility. Each row
  /// of qkv holds the query heads, key heads and value heads. [B,T,(H+2K)D] -> [B,T,HD].
  std::function<at::Tensor(const at::Tensor& qkv, const Microbatch& batch, const AttentionShape& shape)> attention;
  /// A function of local_operations.h, [B,T,in] -> [B,T,out]. The weight is null for functions without one. `shape` has
  /// the heads of this rank.
  std::function<at::Tensor(const std::string& function, const at::Tensor& x, const Weight* weight,
                           const AttentionShape& shape, double eps)>
      local;
  /// Zeroes elements by key and scales the rest by 1/(1-p).
  std::function<at::Tensor(const at::Tensor& x_BTC, const Microbatch& batch, const DropoutKey& key)> dropout;
  /// The sum over valid labels of -log softmax(x W^T)[label], with the terms that `loss` adds, times batch.loss_scale;
  /// a float64 scalar. Backward must start here: the gradient of this scalar must be 1.
  std::function<at::Tensor(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch,
                           const OutputLoss& loss)>
      cross_entropy;
  /// The logits x W^T of the N tokens that have a label, in order and over the full vocabulary: [B,T,C] -> [N,V].
  std::function<at::Tensor(const at::Tensor& x_BTC, const Weight& head_VC, const Microbatch& batch)> logits;
};

/// The rows of x [B,T,C] whose tokens have a label: [N,C].
at::Tensor labeled_rows(const at::Tensor& x_BTC, const at::Tensor& labels_BT);

/// Primitives from plain ATen operators and autograd, for any dtype: slow, short, and the reference for all other
/// bindings.
Primitives plain_primitives();
/// Primitives from one-pass CPU kernels, and from products that add weight gradients directly to their buffers.
Primitives fused_primitives();
Primitives fused_primitives(std::shared_ptr<const struct AttentionCore> core);

}  // namespace orthant

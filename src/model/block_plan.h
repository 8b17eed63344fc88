// A transformer block as a value: the ordered list of its operations. Parameters, FLOPs, messages, memory and roundings
// of a block are sums over this list, and the runtime binds a primitive to each kind of operation. A new norm,
// activation or attention variant is a new entry here, and a function in local_operations.cc or norms.cc.
//
// Example, a LLaMA block of width C, with H query and K key heads of D elements, and an MLP of width I:
//
//   kind        weight                    in -> out          keeps for backward
//   norm        input_layernorm           C -> C             its input, 1 number a token
//   linear      self_attn.qkv_proj        C -> (H + 2 K) D   its input
//   attention                             (H + 2 K) D -> H D what its core keeps
//   linear      self_attn.o_proj          H D -> C, added    its input
//   norm        post_attention_layernorm  C -> C             its input, 1 number a token
//   linear      mlp.gate_up_proj          C -> 2 I           its input
//   local       swiglu                    2 I -> I           its input
//   linear      mlp.down_proj             I -> C, added      its input
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/architecture.h"

namespace orthant {

/// norm: over the residual stream, which columns may shard, together with the addition to the stream before it. linear:
/// a product with a weight. local: any function of each token, or of each head of a token, by itself; meshes carry it
/// out on their shards.
enum class OperationKind { norm, linear, attention, local };

/// Query heads and key heads of attention, each of head_dim elements.
struct AttentionHeads {
  int64_t query = 0, key = 0, head_dim = 0;

  /// Elements of a token's queries, keys and values.
  int64_t elements() const { return (query + 2 * key) * head_dim; }
  auto operator<=>(const AttentionHeads&) const = default;
};

/// One operation of a block. Sizes are elements of one token, unsharded.
struct Operation {
  OperationKind kind;
  std::string function = {};  // of a norm or local operation: its name in norms.cc or local_operations.cc
  std::string weight = {};    // name of its weight within the block: of one parameter, or fused of several
  int64_t in = 0, out = 0;
  bool to_stream = false;  // the output is added to the residual stream; otherwise the next operation reads it
  int64_t statistics = 0;  // numbers of each token that it keeps for backward, in float32 or float64
  int64_t additions = 0;   // that an element passes through in forward and backward, those over keys left out
  int64_t stored = 1;      // tensors that forward stores in the working dtype
  AttentionHeads heads = {};  // of the attention that reads its output, or that it is; no heads for other operations
  std::vector<ParameterInfo> parameters = {};  // named within the block, matrices before their biases

  bool reads_stream() const { return kind == OperationKind::norm || (kind == OperationKind::linear && !to_stream); }
  bool has_bias() const { return !parameters.empty() && parameters.back().is_bias(); }
  /// True if the operation keeps its input for backward. Attention keeps other tensors: see sequence_memory().
  bool keeps_input() const { return kind != OperationKind::attention; }
};

/// The operations of every block, in forward order.
std::vector<Operation> block_operations(const Architecture& a);

/// The heads of the attention that reads the product with this parameter of a model; no heads for other parameters.
AttentionHeads heads_made_by(const Architecture& a, const ParameterInfo& parameter);

/// FLOPs of one operation to train on one token, forward and backward, by Megatron's convention: a product counts 6 x
/// its weights. Attention counts 12 T H D (half of that if causal), or 12 K_p (H + K) D with Linformer's K_p summaries.
/// A sliding window of W < T tokens counts 2 W - W^2 / T in place of T. Norms and activations count nothing.
double training_flops(const Operation& operation, const Architecture& a, int64_t seq_len);

/// A norm over the residual stream: two of them belong to each block, and one precedes the output layer.
Operation stream_norm(const Architecture& a, const std::string& name);

}  // namespace orthant

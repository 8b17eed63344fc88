#include "model/block_plan.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"

namespace orthant {
namespace {

ParameterInfo matrix(const std::string& name, int64_t out, int64_t in, double init_std, ParameterRole role,
                     const std::string& fused = "") {
  return {.name = name + ".weight", .shape = {out, in}, .fused = fused, .init_std = init_std, .role = role};
}

ParameterInfo bias(const std::string& name, int64_t rows, ParameterRole role, const std::string& fused = "") {
  return {.name = name + ".bias", .shape = {rows}, .fused = fused.empty() ? "" : fused + ".bias", .role = role};
}

// A projection that reads the residual stream: several matrices that are used as one, with their biases.
struct Part {
  std::string name;
  int64_t rows;
};
Operation from_stream(const Architecture& a, const std::string& fused, const std::vector<Part>& parts, bool biased) {
  using enum ParameterRole;
  const std::string joint = parts.size() > 1 ? fused : "";
  Operation linear{.kind = OperationKind::linear,
                   .weight = parts.size() > 1 ? fused : fused + ".weight",
                   .in = a.hidden_size,
                   .additions = a.hidden_size + (biased ? 1 : 0)};
  for (const Part& part : parts) {
    linear.out += part.rows;
    linear.additions += part.rows;
    linear.parameters.push_back(matrix(part.name, part.rows, a.hidden_size, a.initializer_range, from_stream, joint));
  }
  for (const Part& part : parts) {
    if (biased) linear.parameters.push_back(bias(part.name, part.rows, from_stream_bias, joint));
  }
  return linear;
}

Operation to_stream(const Architecture& a, const std::string& name, int64_t in, bool biased) {
  // The two matrices that write to the residual stream start smaller, so that the variance of the stream does not grow
  // with depth (Radford et al. 2019, section 2.3).
  const auto layers = static_cast<double>(std::max<int64_t>(1, a.num_hidden_layers));
  Operation linear{.kind = OperationKind::linear,
                   .weight = name + ".weight",
                   .in = in,
                   .out = a.hidden_size,
                   .to_stream = true,
                   .additions = in + a.hidden_size + (biased ? 1 : 0),
                   .stored = 2,  // its output, and the sum with the residual stream
                   .parameters = {matrix(name, a.hidden_size, in, a.initializer_range / std::sqrt(2.0 * layers),
                                         ParameterRole::to_stream)}};
  if (biased) linear.parameters.push_back(bias(name, a.hidden_size, ParameterRole::to_stream_bias));
  return linear;
}

// Linformer's projections [tokens, summaries] of keys and values.
std::vector<ParameterInfo> linformer_projections(const Architecture& a) {
  std::vector<ParameterInfo> projections;
  if (a.linformer_length == 0) return projections;
  // Entries of variance 1/K_p preserve vector lengths (Wang et al. 2020, arXiv 2006.04768, theorem 1).
  const double std = 1 / std::sqrt(static_cast<double>(a.linformer_length));
  for (const char* name : {"self_attn.linformer_k", "self_attn.linformer_v"}) {
    projections.push_back({.name = name,
                           .shape = {a.linformer_tokens, a.linformer_length},
                           .init_std = std,
                           .role = ParameterRole::projection});
  }
  return projections;
}

// Qwen3's norms of heads: one gain for all query heads and one for all key heads, held as one vector.
Operation head_norm(const Architecture& a, int64_t width) {
  const std::string fused = "self_attn.qk_norm";
  Operation norm{.kind = OperationKind::local,
                 .function = "head_norm",
                 .weight = fused,
                 .in = width,
                 .out = width,
                 .statistics = a.num_attention_heads + a.num_key_value_heads,
                 .additions = 2 * a.head_dim,
                 .heads = {a.num_attention_heads, a.num_key_value_heads, a.head_dim}};
  for (const char* name : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}) {
    norm.parameters.push_back(
        {.name = name, .shape = {a.head_dim}, .fused = fused, .role = ParameterRole::head_gain});
  }
  return norm;
}

void add_attention(std::vector<Operation>& block, const Architecture& a) {
  const int64_t q = a.num_attention_heads * a.head_dim, kv = a.num_key_value_heads * a.head_dim;
  const AttentionHeads heads{.query = a.num_attention_heads, .key = a.num_key_value_heads, .head_dim = a.head_dim};
  block.push_back(stream_norm(a, "input_layernorm"));
  block.push_back(from_stream(a, "self_attn.qkv_proj",
                              {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}},
                              a.attention_bias || a.qkv_bias));
  block.back().heads = heads;
  if (a.qk_norm) block.push_back(head_norm(a, q + 2 * kv));
  block.push_back({.kind = OperationKind::attention,
                   .in = q + 2 * kv,
                   .out = q,
                   .additions = 2 * a.head_dim,
                   .stored = 2,  // rotated queries and keys, and the output
                   .heads = heads,
                   .parameters = linformer_projections(a)});
  block.push_back(to_stream(a, "self_attn.o_proj", q, a.attention_bias));
}

void add_mlp(std::vector<Operation>& block, const Architecture& a) {
  const int64_t inner = a.intermediate_size;
  block.push_back(stream_norm(a, "post_attention_layernorm"));
  const bool gated = a.mlp == "swiglu";
  if (gated) {
    block.push_back(
        from_stream(a, "mlp.gate_up_proj", {{"mlp.gate_proj", inner}, {"mlp.up_proj", inner}}, a.mlp_bias));
  } else {
    block.push_back(from_stream(a, "mlp.c_fc", {{"mlp.c_fc", inner}}, a.mlp_bias));
  }
  block.push_back({.kind = OperationKind::local, .function = a.mlp, .in = block.back().out, .out = inner});
  block.push_back(to_stream(a, gated ? "mlp.down_proj" : "mlp.c_proj", inner, a.mlp_bias));
}

}  // namespace

Operation stream_norm(const Architecture& a, const std::string& name) {
  const bool centred = a.norm == "layer_norm";
  Operation norm{.kind = OperationKind::norm,
                 .function = a.norm,
                 .weight = name + ".weight",
                 .in = a.hidden_size,
                 .out = a.hidden_size,
                 .statistics = centred ? 2 : 1,  // mean and scale, or scale alone
                 .additions = (centred ? 4 : 2) * a.hidden_size,
                 .parameters = {{.name = name + ".weight", .shape = {a.hidden_size}, .role = ParameterRole::gain}}};
  if (centred) norm.parameters.push_back(bias(name, a.hidden_size, ParameterRole::norm_bias));
  return norm;
}

std::vector<Operation> block_operations(const Architecture& a) {
  std::vector<Operation> block;
  add_attention(block, a);
  add_mlp(block, a);
  return block;
}

AttentionHeads heads_made_by(const Architecture& a, const ParameterInfo& parameter) {
  for (const Operation& operation : block_operations(a)) {
    if (operation.kind != OperationKind::linear || operation.heads.query == 0) continue;
    const auto is_same = [&](const ParameterInfo& own) { return parameter.name.ends_with("." + own.name); };
    if (std::ranges::any_of(operation.parameters, is_same)) return operation.heads;
  }
  return {};
}

double training_flops(const Operation& operation, const Architecture& a, int64_t seq_len) {
  switch (operation.kind) {
    case OperationKind::linear:
      return 6 * static_cast<double>(operation.in * operation.out);
    case OperationKind::attention: {
      const int64_t q = a.num_attention_heads * a.head_dim, kv = a.num_key_value_heads * a.head_dim;
      if (a.linformer_length > 0) return static_cast<double>(12 * a.linformer_length * (q + kv));
      const auto tokens = static_cast<double>(seq_len), window = static_cast<double>(a.sliding_window);
      const double seen =
          a.sliding_window > 0 && window < tokens ? window - window * window / (2 * tokens) : tokens / 2;
      return (a.causal() ? 12 : 24) * seen * static_cast<double>(q);
    }
    case OperationKind::norm:
    case OperationKind::local:
      return 0;
  }
  throw LogicError("an operation of unknown kind");
}

}  // namespace orthant

#include "model/architecture.h"

#include "base/errors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orthant {

namespace {

int64_t product(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

// Attention FLOPs per token of one layer, forward and backward.
double attention_flops_per_token(const Architecture& a, int64_t seq_len) {
  const int64_t q = a.num_attention_heads * a.head_dim, kv = a.num_key_value_heads * a.head_dim;
  if (a.linformer_length > 0) return static_cast<double>(12 * a.linformer_length * (q + kv));
  return static_cast<double>((a.causal ? 6 : 12) * seq_len * q);
}

}  // namespace

int64_t ParameterInfo::size() const { return product(shape); }
int64_t ParameterInfo::shard_size() const { return product(shard_shape()); }

std::vector<int64_t> ParameterInfo::shard_shape() const {
  if (held.empty()) return shape;
  ORTHANT_CHECK(held.size() == shape.size(), name, held.size(), shape.size());
  std::vector<int64_t> extents;
  for (const auto& [begin, end] : held) extents.push_back(end - begin);
  return extents;
}

std::vector<ParameterInfo> parameter_table(const Architecture& a) {
  const int64_t hidden = a.hidden_size;
  const int64_t q_rows = a.num_attention_heads * a.head_dim;
  const int64_t kv_rows = a.num_key_value_heads * a.head_dim;
  const double std = a.initializer_range;
  // The two matrices that write to the residual stream start smaller, so that the variance of the stream does not grow
  // with depth (Radford et al. 2019, section 2.3).
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(std::max<int64_t>(1, a.num_hidden_layers)));

  std::vector<ParameterInfo> table;
  table.push_back({.name = "model.embed_tokens.weight", .shape = {a.vocab_size, hidden}, .init_std = std, .layer = -1,
                   .role = ParameterRole::embedding});
  for (int layer = 0; layer < a.num_hidden_layers; ++layer) {
    const std::string block = fmt::format("model.layers.{}.", layer);
    const std::string qkv = block + "self_attn.qkv_proj";
    const std::string gate_up = block + "mlp.gate_up_proj";
    auto add = [&](const std::string& name, std::vector<int64_t> shape, double init_std, ParameterRole role,
                   const std::string& fused = "") {
      table.push_back({.name = block + name + ".weight",
                       .shape = std::move(shape),
                       .fused = fused,
                       .init_std = init_std,
                       .layer = layer,
                       .role = role});
    };
    auto add_bias = [&](bool has_any, const std::string& name, int64_t rows, ParameterRole role,
                        const std::string& matrix = "") {
      if (!has_any) return;
      table.push_back({.name = block + name + ".bias",
                       .shape = {rows},
                       .fused = matrix.empty() ? "" : matrix + ".bias",
                       .layer = layer,
                       .role = role});
    };
    add("input_layernorm", {hidden}, 0, ParameterRole::gain);
    add("self_attn.q_proj", {q_rows, hidden}, std, ParameterRole::from_stream, qkv);
    add("self_attn.k_proj", {kv_rows, hidden}, std, ParameterRole::from_stream, qkv);
    add("self_attn.v_proj", {kv_rows, hidden}, std, ParameterRole::from_stream, qkv);
    add_bias(a.attention_bias, "self_attn.q_proj", q_rows, ParameterRole::from_stream_bias, qkv);
    add_bias(a.attention_bias, "self_attn.k_proj", kv_rows, ParameterRole::from_stream_bias, qkv);
    add_bias(a.attention_bias, "self_attn.v_proj", kv_rows, ParameterRole::from_stream_bias, qkv);
    add("self_attn.o_proj", {hidden, q_rows}, residual_std, ParameterRole::to_stream);
    add_bias(a.attention_bias, "self_attn.o_proj", hidden, ParameterRole::to_stream_bias);
    if (a.linformer_length > 0) {
      // Entries of variance 1/K_p preserve vector lengths (Wang et al. 2020, arXiv 2006.04768, theorem 1).
      const double projection_std = 1 / std::sqrt(static_cast<double>(a.linformer_length));
      for (const char* name : {"self_attn.linformer_k", "self_attn.linformer_v"}) {
        table.push_back({.name = block + name,
                         .shape = {a.linformer_tokens, a.linformer_length},
                         .init_std = projection_std,
                         .layer = layer,
                         .role = ParameterRole::projection});
      }
    }
    add("post_attention_layernorm", {hidden}, 0, ParameterRole::gain);
    add("mlp.gate_proj", {a.intermediate_size, hidden}, std, ParameterRole::from_stream, gate_up);
    add("mlp.up_proj", {a.intermediate_size, hidden}, std, ParameterRole::from_stream, gate_up);
    add_bias(a.mlp_bias, "mlp.gate_proj", a.intermediate_size, ParameterRole::from_stream_bias, gate_up);
    add_bias(a.mlp_bias, "mlp.up_proj", a.intermediate_size, ParameterRole::from_stream_bias, gate_up);
    add("mlp.down_proj", {hidden, a.intermediate_size}, residual_std, ParameterRole::to_stream);
    add_bias(a.mlp_bias, "mlp.down_proj", hidden, ParameterRole::to_stream_bias);
  }
  const int last = static_cast<int>(a.num_hidden_layers);
  table.push_back({.name = "model.norm.weight", .shape = {hidden}, .init_std = 0, .layer = last});
  if (!a.tie_word_embeddings) {
    table.push_back({.name = "lm_head.weight", .shape = {a.vocab_size, hidden}, .init_std = std, .layer = last,
                     .role = ParameterRole::head});
  }
  return table;
}

int64_t num_parameters(const Architecture& a) {
  int64_t n = 0;
  for (const auto& parameter : parameter_table(a)) n += parameter.size();
  return n;
}

FlatLayout flat_layout(const std::vector<ParameterInfo>& parameters) {
  FlatLayout flat;
  std::vector<std::vector<size_t>> by_group(1);  // weights of each group
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool continues = i > 0 && !parameters[i].fused.empty() && parameters[i].fused == parameters[i - 1].fused;
    if (!continues) {
      const auto group = static_cast<size_t>(parameters[i].group);
      by_group.resize(std::max(by_group.size(), group + 1));
      by_group[group].push_back(flat.members.size());
      flat.members.emplace_back(i, i);
    }
    flat.members.back().second = i + 1;
  }
  flat.parameter_offsets.resize(parameters.size());
  flat.weights.resize(flat.members.size());
  const auto align = [&] {
    flat.elements = (flat.elements + kFlatAlignElements - 1) / kFlatAlignElements * kFlatAlignElements;
  };
  for (const std::vector<size_t>& group : by_group) {
    align();  // a group with equal weights on several ranks is then equal there up to its last gap
    flat.groups.emplace_back(flat.elements, flat.elements);
    for (const size_t w : group) {
      const auto [first, end] = flat.members[w];
      align();
      flat.weights[w].first = flat.elements;
      for (size_t i = first; i < end; ++i) {
        ORTHANT_CHECK(parameters[i].group == parameters[first].group, parameters[i].name, parameters[first].name);
        flat.parameter_offsets[i] = flat.elements;
        flat.elements += parameters[i].shard_size();
      }
      flat.weights[w].second = flat.elements - flat.weights[w].first;
    }
    flat.groups.back().second = flat.elements;
  }
  return flat;
}

std::vector<double> inverse_frequencies(const Architecture& a) {
  std::vector<double> frequencies;
  const RopeScaling& scaling = a.rope_scaling;
  for (int64_t k = 0; k < a.head_dim / 2; ++k) {
    double f = std::pow(a.rope_theta, -2.0 * static_cast<double>(k) / static_cast<double>(a.head_dim));
    if (scaling.type == "linear") f /= scaling.factor;
    if (scaling.type == "llama3") {
      const auto original = static_cast<double>(scaling.original_max_position_embeddings);
      const double wavelength = 2 * std::numbers::pi / f;
      if (wavelength > original / scaling.low_freq_factor) {
        f /= scaling.factor;
      } else if (wavelength >= original / scaling.high_freq_factor) {
        const double smooth = (original / wavelength - scaling.low_freq_factor) /
                              (scaling.high_freq_factor - scaling.low_freq_factor);
        f = (1 - smooth) * f / scaling.factor + smooth * f;
      }
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

double training_flops_per_token(const Architecture& a, int64_t seq_len) {
  double weights = static_cast<double>(a.vocab_size * a.hidden_size);  // logits; the embedding lookup costs no FLOPs
  for (const auto& parameter : parameter_table(a)) {
    if (parameter.layer >= 0 && parameter.layer < a.num_hidden_layers && parameter.is_matrix()) {
      weights += static_cast<double>(parameter.size());
    }
  }
  // E and F are subtracted because a token multiplies only its own row of them. attention_flops_per_token() counts both
  // the products with that row and the attention to the summaries.
  weights -= static_cast<double>(a.num_hidden_layers * 2 * a.linformer_tokens * a.linformer_length);
  return 6 * weights + static_cast<double>(a.num_hidden_layers) * attention_flops_per_token(a, seq_len);
}

int64_t loss_chunk_rows(int64_t vocab_size) {
  // About 32 MiB of float logits. At least 512 rows: with fewer, adding to the head's gradient would cost more than the
  // product.
  constexpr int64_t kChunkElements = 8 << 20;
  return std::max<int64_t>(512, kChunkElements / std::max<int64_t>(1, vocab_size));
}

}  // namespace orthant

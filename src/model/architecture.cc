#include "model/architecture.h"

#include "base/errors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace orthant {

int64_t ParameterInfo::size() const {
  int64_t n = 1;
  for (const int64_t extent : shape) n *= extent;
  return n;
}

std::vector<ParameterInfo> parameter_table(const Architecture& a) {
  const int64_t hidden = a.hidden_size;
  const int64_t q_rows = a.num_attention_heads * a.head_dim;
  const int64_t kv_rows = a.num_key_value_heads * a.head_dim;
  const double std = a.initializer_range;
  // The two products that write to the residual stream start smaller, so that its variance does not grow with depth
  // (Radford et al. 2019, section 2.3).
  const double residual_std = std / std::sqrt(2.0 * static_cast<double>(std::max<int64_t>(1, a.num_hidden_layers)));

  std::vector<ParameterInfo> table;
  table.push_back({.name = "model.embed_tokens.weight", .shape = {a.vocab_size, hidden}, .init_std = std, .layer = -1});
  for (int layer = 0; layer < a.num_hidden_layers; ++layer) {
    const std::string block = fmt::format("model.layers.{}.", layer);
    const std::string qkv = block + "self_attn.qkv_proj";
    const std::string gate_up = block + "mlp.gate_up_proj";
    auto add = [&](const std::string& name, std::vector<int64_t> shape, double init_std, const std::string& fused = "") {
      table.push_back({block + name + ".weight", std::move(shape), fused, init_std, layer});
    };
    add("input_layernorm", {hidden}, 0);
    add("self_attn.q_proj", {q_rows, hidden}, std, qkv);
    add("self_attn.k_proj", {kv_rows, hidden}, std, qkv);
    add("self_attn.v_proj", {kv_rows, hidden}, std, qkv);
    add("self_attn.o_proj", {hidden, q_rows}, residual_std);
    add("post_attention_layernorm", {hidden}, 0);
    add("mlp.gate_proj", {a.intermediate_size, hidden}, std, gate_up);
    add("mlp.up_proj", {a.intermediate_size, hidden}, std, gate_up);
    add("mlp.down_proj", {hidden, a.intermediate_size}, residual_std);
  }
  const int last = static_cast<int>(a.num_hidden_layers);
  table.push_back({.name = "model.norm.weight", .shape = {hidden}, .init_std = 0, .layer = last});
  if (!a.tie_word_embeddings) {
    table.push_back({.name = "lm_head.weight", .shape = {a.vocab_size, hidden}, .init_std = std, .layer = last});
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
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool continues = i > 0 && !parameters[i].fused.empty() && parameters[i].fused == parameters[i - 1].fused;
    if (!continues) {
      flat.elements = (flat.elements + kFlatAlignElements - 1) / kFlatAlignElements * kFlatAlignElements;
      flat.weights.emplace_back(flat.elements, 0);
      flat.members.emplace_back(i, i);
    }
    flat.parameter_offsets.push_back(flat.elements);
    flat.elements += parameters[i].size();
    flat.weights.back().second += parameters[i].size();
    flat.members.back().second = i + 1;
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
  double weights = static_cast<double>(a.vocab_size * a.hidden_size);  // logits; the lookup of the embedding is free
  for (const auto& parameter : parameter_table(a)) {
    if (parameter.layer >= 0 && parameter.layer < a.num_hidden_layers && parameter.decays()) {
      weights += static_cast<double>(parameter.size());
    }
  }
  const auto attention = static_cast<double>(a.num_hidden_layers * seq_len * a.num_attention_heads * a.head_dim);
  return 6 * weights + 6 * attention;
}

int64_t loss_chunk_rows(int64_t vocab_size) {
  // About 32 MiB of float logits, but never so few rows that adding to the head's gradient outweighs the product.
  constexpr int64_t kChunkElements = 8 << 20;
  return std::max<int64_t>(512, kChunkElements / std::max<int64_t>(1, vocab_size));
}

ActivationBytes activation_bytes(const Architecture& a, int64_t tokens, int element_bytes, bool recompute,
                                 const AttentionBytes& attention) {
  const int64_t hidden = a.hidden_size, q = a.num_attention_heads * a.head_dim, kv = a.num_key_value_heads * a.head_dim;
  const int64_t row = tokens * element_bytes;
  const int64_t statistic = tokens * (element_bytes == 8 ? 8 : 4);
  ActivationBytes bytes;
  bytes.boundary = row * hidden;
  // Norm 1: input (the boundary, counted there), output, one statistic a row. Attention. Norm 2: sum, output, statistic.
  // MLP: gate and up, their product.
  bytes.per_block = attention.kept + row * (hidden + 2 * hidden + 3 * a.intermediate_size) + statistic * 2;
  // Final norm: output's gradient (made in the loss's forward) and the statistic; the norm's output dies in the loss.
  bytes.head = row * hidden + statistic;
  const int64_t chunk = std::min(tokens, loss_chunk_rows(a.vocab_size));
  const int64_t loss_work = chunk * a.vocab_size * element_bytes + row * hidden;
  const int64_t attention_work = row * (2 * (q + 2 * kv) + 2 * q + hidden) + attention.working;
  const int64_t block_work = std::max(row * (3 * a.intermediate_size + 2 * hidden), attention_work);
  bytes.working_peak = std::max(loss_work, block_work);
  bytes.kept = (recompute ? bytes.boundary : bytes.boundary + bytes.per_block) * a.num_hidden_layers + bytes.boundary + bytes.head;
  if (recompute) bytes.working_peak = std::max(loss_work, block_work + bytes.per_block);
  return bytes;
}

}  // namespace orthant

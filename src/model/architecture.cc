#include "model/architecture.h"

#include "base/errors.h"
#include "model/block_plan.h"

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
  const std::vector<int64_t> table_shape{a.vocab_size, a.hidden_size};
  std::vector<ParameterInfo> table;
  table.push_back({.name = "model.embed_tokens.weight", .shape = table_shape, .init_std = a.initializer_range,
                   .layer = -1, .role = ParameterRole::embedding});
  if (!a.rotary()) {
    table.push_back({.name = "model.embed_positions.weight", .shape = {a.max_position_embeddings, a.hidden_size},
                     .init_std = a.initializer_range, .layer = -1, .role = ParameterRole::position});
  }
  const std::vector<Operation> block = block_operations(a);
  for (int layer = 0; layer < a.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    for (const Operation& operation : block) {
      for (ParameterInfo parameter : operation.parameters) {
        parameter.name = prefix + parameter.name;
        if (!parameter.fused.empty()) parameter.fused = prefix + parameter.fused;
        parameter.layer = layer;
        table.push_back(std::move(parameter));
      }
    }
  }
  const int last = static_cast<int>(a.num_hidden_layers);
  for (ParameterInfo parameter : stream_norm(a, "model.norm").parameters) {
    parameter.layer = last;
    table.push_back(std::move(parameter));
  }
  if (!a.tie_word_embeddings) {
    table.push_back({.name = "lm_head.weight", .shape = table_shape, .init_std = a.initializer_range, .layer = last,
                     .role = ParameterRole::head});
  }
  return table;
}

int64_t num_parameters(const Architecture& a) {
  int64_t n = 0;
  for (const auto& parameter : parameter_table(a)) n += parameter.size();
  return n;
}

bool is_ignored_by_softmax(const Architecture& a, const ParameterInfo& parameter) {
  return !a.rotary() && !a.qk_norm && a.linformer_length == 0 && parameter.name.ends_with("k_proj.bias");
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

namespace {

// The index k, as a fraction, of the frequency that turns this often in the original context of a model with yarn.
double index_of_turns(const Architecture& a, double turns) {
  const auto original = static_cast<double>(a.rope_scaling_original_max_position_embeddings);
  return static_cast<double>(a.head_dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(a.rope_theta));
}

// The share of the unscaled frequency k with yarn: 1 up to a first index, 0 from a last one on.
double unscaled_share(const Architecture& a, int64_t k) {
  const double first = std::max(std::floor(index_of_turns(a, a.rope_scaling_beta_fast)), 0.0);
  const double last =
      std::min(std::ceil(index_of_turns(a, a.rope_scaling_beta_slow)), static_cast<double>(a.head_dim - 1));
  const double width = first == last ? 0.001 : last - first;
  return 1 - std::clamp((static_cast<double>(k) - first) / width, 0.0, 1.0);
}

}  // namespace

double rotary_factor(const Architecture& a) {
  if (a.rope_scaling_type != "yarn") return 1;
  if (a.rope_scaling_attention_factor > 0) return a.rope_scaling_attention_factor;
  return a.rope_scaling_factor <= 1 ? 1 : 0.1 * std::log(a.rope_scaling_factor) + 1;
}

std::vector<double> inverse_frequencies(const Architecture& a) {
  std::vector<double> frequencies;
  for (int64_t k = 0; k < a.head_dim / 2; ++k) {
    double f = std::pow(a.rope_theta, -2.0 * static_cast<double>(k) / static_cast<double>(a.head_dim));
    if (a.rope_scaling_type == "linear") f /= a.rope_scaling_factor;
    if (a.rope_scaling_type == "yarn") {
      const double share = unscaled_share(a, k);
      f = f / a.rope_scaling_factor * (1 - share) + f * share;
    }
    if (a.rope_scaling_type == "llama3") {
      const auto original = static_cast<double>(a.rope_scaling_original_max_position_embeddings);
      const double wavelength = 2 * std::numbers::pi / f;
      if (wavelength > original / a.rope_scaling_low_freq_factor) {
        f /= a.rope_scaling_factor;
      } else if (wavelength >= original / a.rope_scaling_high_freq_factor) {
        const double smooth = (original / wavelength - a.rope_scaling_low_freq_factor) /
                              (a.rope_scaling_high_freq_factor - a.rope_scaling_low_freq_factor);
        f = (1 - smooth) * f / a.rope_scaling_factor + smooth * f;
      }
    }
    frequencies.push_back(f);
  }
  return frequencies;
}

double training_flops_per_token(const Architecture& a, int64_t seq_len) {
  double block = 0;
  for (const Operation& operation : block_operations(a)) block += training_flops(operation, a, seq_len);
  const auto head = static_cast<double>(a.vocab_size * a.hidden_size);  // the embedding lookup costs no FLOPs
  return 6 * head + static_cast<double>(a.num_hidden_layers) * block;
}

int64_t loss_chunk_rows(int64_t vocab_size, bool on_gpu) {
  // About 32 MiB of float logits on a CPU, 512 MiB of bfloat16 logits on a GPU. At least 512 rows: with fewer, adding
  // to the head's gradient would take longer than the product. On a GPU that takes more rows.
  const int64_t elements = int64_t{1} << (on_gpu ? 28 : 23);
  return std::max<int64_t>(512, elements / std::max<int64_t>(1, vocab_size));
}

int64_t capped_score_rows(int64_t heads, int64_t keys, bool on_gpu) {
  // At most 16 MiB of float scores on a CPU and 256 MiB on a GPU, but at least 16 rows.
  const int64_t elements = int64_t{1} << (on_gpu ? 26 : 22);
  return std::max<int64_t>(16, elements / std::max<int64_t>(1, heads * keys));
}

}  // namespace orthant

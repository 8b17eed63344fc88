// A model and a batch that are small enough for tests, yet awkward: the widths and the vocabulary are no powers of two,
// and one label is ignored.
#pragma once

#include "model/architecture.h"
#include "model/primitives.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace orthant {

struct TinyOptions {
  bool tied = false;
  int64_t kv_heads = 2;
  int64_t heads = 4;
  bool llama3 = false;
  double dropout = 0;
  bool biases = false;
  bool qk_norm = false;
  std::string mlp = "swiglu";
  std::string norm = "rms_norm";
  std::string positions = "rotary";
};

inline Architecture tiny_architecture(TinyOptions options = {}) {
  Architecture a{.hidden_size = 24,
                 .intermediate_size = 40,
                 .num_hidden_layers = 2,
                 .num_attention_heads = options.heads,
                 .num_key_value_heads = options.kv_heads,
                 .head_dim = 6,
                 .vocab_size = 37,
                 .max_position_embeddings = 64,
                 .norm = options.norm,
                 .qk_norm = options.qk_norm,
                 .mlp = options.mlp,
                 .positions = options.positions,
                 .tie_word_embeddings = options.tied,
                 .attention_bias = options.biases,
                 .mlp_bias = options.biases,
                 .dropout = options.dropout,
                 .initializer_range = 0.2};
  if (options.llama3) {
    a.rope_scaling_type = "llama3";
    a.rope_scaling_original_max_position_embeddings = 32;
  }
  return a;
}

inline Microbatch random_batch(const Architecture& a, int64_t B, int64_t T, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  Microbatch batch;
  batch.tokens_BT = at::randint(0, a.vocab_size, {B, T}, generator, at::kLong);
  batch.labels_BT = at::randint(0, a.vocab_size, {B, T}, generator, at::kLong);
  batch.labels_BT[0][T / 2] = -100;
  batch.positions_BT = at::arange(T).unsqueeze(0).expand({B, T}).contiguous();
  batch.samples_B = at::arange(B) + 11;
  batch.loss_scale = 1.0 / static_cast<double>(B * T - 1);
  batch.sequence_length = T;
  batch.step = 3;
  return batch;
}

}  // namespace orthant

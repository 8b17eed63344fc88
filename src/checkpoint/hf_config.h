// config.json of a Hugging Face LLaMA directory: the fields Orthant needs, read in the spellings of transformers 4
// and 5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace orthant {

/// Names and defaults are LlamaConfig's; the rope_scaling_* names are the run file's.
struct HfConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;  // the reader fills it in where the file leaves it out: num_attention_heads
  int64_t head_dim = 128;            // likewise: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  double final_logit_softcapping = 0.0;  // Gemma 2's name; 0 or absent: none
  double rope_theta = 10000.0;
  std::string rope_scaling_type = "none";  // none | linear | llama3
  double rope_scaling_factor = 1.0;        // linear and llama3; the rest is llama3's
  double rope_scaling_low_freq_factor = 1.0;
  double rope_scaling_high_freq_factor = 4.0;
  int64_t rope_scaling_original_max_position_embeddings = 8192;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;
  bool is_causal = true;  // false: attention to both sides, trained on masked tokens (transformers 5 reads it so too)
  int64_t sliding_window = 0;  // a token sees so many up to its own; 0: all. Mistral's, and so named in the file
  int64_t linformer_length =
      0;  // ours: summaries that attention sees, and tokens that they are made of; 0: it sees tokens
  int64_t linformer_tokens = 0;
  Dtype torch_dtype = Dtype::f32;  // of the weights as stored: f32, f16, bf16 or f64
  std::string other_keys = "{}";   // a JSON object of keys we do not interpret, kept for the way back
  bool operator==(const HfConfig&) const = default;
};

/// The file's text: transformers 4 spelling plus an equal rope_parameters for transformers 5.
std::string config_json(const HfConfig& config);
/// generation_config.json: the ids that start and end a text.
std::string generation_config_json(const HfConfig& config);
/// Throws DataError naming file and key for what is missing, of the wrong type, contradictory, or not runnable here:
/// a model_type that is neither llama nor mistral, biases of a mistral, another activation, quantized weights, other
/// rope types, rope per layer type.
HfConfig parse_hf_config(const std::string& text, const std::string& source);
/// `path` is the config.json itself or the directory that holds it.
HfConfig read_hf_config(const std::string& path);

}  // namespace orthant

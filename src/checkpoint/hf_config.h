// config.json of a Hugging Face LLaMA directory: the fields that Orthant needs, in the forms of transformers 4 and 5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace orthant {

/// Names and defaults are those of LlamaConfig; the rope_scaling_* names are those of the run file.
struct HfConfig {
  int64_t vocab_size = 32000;
  int64_t hidden_size = 4096;
  int64_t intermediate_size = 11008;
  int64_t num_hidden_layers = 32;
  int64_t num_attention_heads = 32;
  int64_t num_key_value_heads = 32;  // num_attention_heads if the file omits it
  int64_t head_dim = 128;            // hidden_size / num_attention_heads if the file omits it
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  double final_logit_softcapping = 0.0;  // named as in Gemma 2; 0 or absent: none
  double rope_theta = 10000.0;
  std::string rope_scaling_type = "none";  // none | linear | llama3
  double rope_scaling_factor = 1.0;        // for linear and llama3; the following fields only for llama3
  double rope_scaling_low_freq_factor = 1.0;
  double rope_scaling_high_freq_factor = 4.0;
  int64_t rope_scaling_original_max_position_embeddings = 8192;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  std::optional<int64_t> pad_token_id;
  // False: bidirectional attention, trained on masked tokens. transformers 5 reads this key in the same way.
  bool is_causal = true;
  // Number of tokens a token attends to, itself included; 0 = unlimited. Named as in Mistral's file.
  int64_t sliding_window = 0;
  // Linformer, keys of our own: attention sees `linformer_length` summaries of a sequence. Their projections are made
  // for `linformer_tokens` tokens. With length 0, attention sees the tokens.
  int64_t linformer_length = 0;
  int64_t linformer_tokens = 0;
  Dtype torch_dtype = Dtype::f32;  // of the stored weights: f32, f16, bf16 or f64
  std::string other_keys = "{}";   // JSON object of the keys that are not interpreted, kept for writing
  bool operator==(const HfConfig&) const = default;
};

/// The file's text: the form of transformers 4, plus an equal rope_parameters for transformers 5.
std::string config_json(const HfConfig& config);
/// generation_config.json: the token ids that start and end a text.
std::string generation_config_json(const HfConfig& config);
/// Throws DataError with file and key for a value that is missing, of the wrong type, contradictory, or not supported.
/// Not supported: a model_type other than llama and mistral; biases of a mistral; an activation other than silu;
/// quantized weights; rope types other than default, linear and llama3; rope parameters per layer type.
HfConfig parse_hf_config(const std::string& text, const std::string& source);
/// `path` is the config.json, or the directory that contains it.
HfConfig read_hf_config(const std::string& path);

}  // namespace orthant

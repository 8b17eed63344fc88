// The model families of Hugging Face's transformers whose config.json Orthant reads and writes: which operations of a
// block each of them stands for, and how its file differs from Llama's. A new family is a row of the table.
#pragma once

#include <string_view>

#include "model/architecture.h"

namespace orthant {

struct HfFamily {
  std::string_view model_type;    // in config.json
  std::string_view class_prefix;  // of the class in `architectures`: "Llama" for LlamaForCausalLM
  std::string_view norm = "rms_norm", mlp = "swiglu", hidden_act = "silu";
  bool qk_norm = false;
  bool window = false;                          // its models may have a sliding window
  bool attention_bias = true, mlp_bias = true;  // its projections may have biases
  std::string_view both_biases = {};            // one key for both biases, in place of two
  std::string_view eps = "rms_norm_eps";
  int64_t default_window = 0;    // where the file omits the key
  bool tied_by_default = false;  // the same for tie_word_embeddings
  std::string_view window_switch = {};  // a key that must be true for a window to hold
};

/// Returns the family with this model_type, or nullptr. "orthant" is the family of all models that transformers does
/// not have: their file states norm, mlp and qk_norm under our own names.
const HfFamily* find_family(std::string_view model_type);

/// Returns the family that can express the model: the first of the table, or "orthant".
const HfFamily& family_of(const Architecture& model);

}  // namespace orthant

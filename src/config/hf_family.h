// The model families of Hugging Face's transformers whose config.json Orthant reads and writes: which operations of a
// block each of them stands for, and how its file differs from Llama's. A new family is a row of the table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/architecture.h"

namespace orthant {

/// The values of a family's class in transformers where the file omits the key.
struct HfDefaults {
  int64_t num_key_value_heads = 0;  // 0: num_attention_heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  int64_t sliding_window = 0;
  int64_t mlp_width_factor = 0;  // intermediate_size / hidden_size; 0: the file must have the key
  double eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
};

/// A key of Llama's config.json under another name; `own` is empty if the family's files have no such key.
struct HfSpelling {
  std::string_view key, own;
};

/// The name of a module in the model and in the family's files.
struct HfModule {
  std::string_view ours, theirs;
};

/// How the family's files store the weights, where that differs from Llama's form. Modules of a block that have the
/// same name in the files lie side by side in one tensor: the rows of the first, then those of the next.
struct HfStorage {
  std::string_view prefix = "";               // of all names but lm_head's; some files omit it
  std::string_view layers = "model.layers.";  // in front of a layer's number
  bool transposed = false;                    // the matrices of a block are stored as [in, out]
  std::span<const HfModule> modules = {};     // the others keep their names
};

struct HfFamily {
  std::string_view model_type;    // in config.json
  std::string_view class_prefix;  // of the class in `architectures`: "Llama" for LlamaForCausalLM
  std::string_view class_suffix = "ForCausalLM";
  std::string_view norm = "rms_norm", mlp = "swiglu", hidden_act = "silu", positions = "rotary";
  bool qk_norm = false;
  bool window = false;                          // its models may have a sliding window
  bool attention_bias = true, mlp_bias = true;  // its projections may have biases
  bool always_biased = false;                   // all its projections always have biases
  bool qkv_bias = false;                        // query, key and value projections always have biases
  std::string_view both_biases = {};            // one key for both biases, in place of two
  std::string_view eps = "rms_norm_eps";
  std::string_view window_switch = {};          // a key that must be true for a window to hold
  std::string_view attention_dropout = "attention_dropout";  // the key of the dropout of attention probabilities
  std::span<const std::string_view> stream_dropouts = {};    // the keys that model.dropout stands for
  std::span<const HfSpelling> spellings = {};
  HfStorage storage = {};
  HfDefaults defaults = {};

  /// The name of Llama's key in the family's files; empty if they do not have it.
  std::string_view spelling(std::string_view key) const;
};

/// Returns the family with this model_type, or nullptr. "orthant" is the family of all models that transformers does
/// not have: their file states norm, mlp and qk_norm under our own names.
const HfFamily* find_family(std::string_view model_type);
/// Sets what the family's class prescribes or has by default for its blocks: norms, MLP, positions, biases, tied
/// tables, and as many key heads as query heads if the family has no others. "orthant" prescribes nothing.
void set_blocks(const HfFamily& family, Architecture& model);
/// Returns the model_type of every family.
std::vector<std::string> family_names();

/// Returns the family in whose form the model's files are written: model.architecture if that family can express the
/// model, or else the first of the table that can, or else "orthant".
const HfFamily& family_of(const Architecture& model);

/// Describes the model by its family and sizes: "llama, 6 layers, hidden 256, 8 heads (4 key-value)". Operations that
/// are not Llama's follow, as in ", layer_norm, gelu".
std::string architecture_text(const Architecture& model);

}  // namespace orthant

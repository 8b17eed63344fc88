// What a LLaMA-style decoder is, without torch: its sizes, its parameters by name, its FLOPs and the bytes it keeps for
// backward. Planning and the model itself read the same tables, so a plan cannot disagree with what runs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

struct RopeScaling {
  std::string type = "none";  // none | linear | llama3
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
};

/// Sizes of one decoder; names are those of Hugging Face's config.json.
struct Architecture {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling = {};
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // of the query, key, value and output projections
  bool mlp_bias = false;        // of gate, up and down
  bool causal = true;          // false: every token sees the whole sequence
  int64_t sliding_window = 0;  // a token sees so many up to itself (to either side where not causal); 0: all
  int64_t linformer_length = 0;  // summary rows that attention sees instead of tokens (Linformer); 0: full attention
  int64_t linformer_tokens = 0;  // of a sequence, which its projections are made for
  double final_logit_softcapping = 0.0;  // logits y of the head become c tanh(y / c); 0: stay
  double dropout = 0.0;
  double initializer_range = 0.02;
};

/// What a parameter does between the vocabulary and the residual stream.
enum class ParameterRole {
  embedding, gain, from_stream, from_stream_bias, to_stream, to_stream_bias, head, projection
};

/// One parameter: its Hugging Face name, its global shape ([out, in] for a matrix) and how it starts.
/// Parameters with the same fused name stand one after the other and are used as one matrix (q, k, v; gate, up), and
/// behind it, if it has any, their biases as one vector.
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  std::string fused = {};
  double init_std = 0.0;   // 0: starts at one (a norm's gain), or at zero (a bias)
  int layer = -1;          // -1: before the first block; num_hidden_layers: after the last
  /// projection: its rows stand for the tokens of a sequence, and are held where those are (Linformer).
  ParameterRole role = ParameterRole::gain;
  int group = 0;           // parameters of one group stand side by side in a flat buffer
  std::string copy_of = {};  // the parameter that this one starts and stays equal to; it is in no file
  /// Of each dim the first index that is here, and one past the last; empty: all of it is.
  std::vector<std::pair<int64_t, int64_t>> held = {};

  int64_t size() const;  // of the whole
  std::vector<int64_t> held_shape() const;
  int64_t held_size() const;
  /// The name by which it is drawn, saved and loaded.
  const std::string& global_name() const { return copy_of.empty() ? name : copy_of; }
  bool decays() const { return shape.size() >= 2; }  // weight decay is for matrices only
  bool is_bias() const { return role == ParameterRole::from_stream_bias || role == ParameterRole::to_stream_bias; }
};

/// All parameters in the model's order: embedding, blocks, final norm, head (absent when tied).
std::vector<ParameterInfo> parameter_table(const Architecture& a);
int64_t num_parameters(const Architecture& a);

/// Where what is held of everything stands in a flat buffer: group by group, in the model's order. A weight is a
/// parameter, or adjacent ones with the same fused name; each starts at a multiple of kFlatAlignElements, gaps stay
/// zero.
struct FlatLayout {
  std::vector<int64_t> parameter_offsets;
  std::vector<std::pair<int64_t, int64_t>> weights;  // offset and size in elements
  std::vector<std::pair<size_t, size_t>> members;    // of each weight: first parameter, one past the last
  std::vector<std::pair<int64_t, int64_t>> groups;   // first element, one past the last
  int64_t elements = 0;
};
inline constexpr int64_t kFlatAlignElements = 32;
FlatLayout flat_layout(const std::vector<ParameterInfo>& parameters);

/// inv_freq[k] = theta^(-2k/D), k < D/2, after scaling (linear: divided by the factor; llama3: by wavelength,
/// Llama 3.1's rule as in Hugging Face's modeling_rope_utils).
std::vector<double> inverse_frequencies(const Architecture& a);

/// FLOPs of one trained token, forward and backward, Megatron's convention: 6 x weights of all matrix products, logits
/// included, + 12 L T d for attention, half of that where it is causal, or 12 L K_p (d + d_kv) with Linformer's
/// summaries. Recomputation is not counted.
double training_flops_per_token(const Architecture& a, int64_t seq_len);

/// Rows of logits that the loss holds at a time.
int64_t loss_chunk_rows(int64_t vocab_size);

}  // namespace orthant

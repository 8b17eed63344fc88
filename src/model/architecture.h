// Architecture: the sizes and rules of a decoder, as one plain struct; its parameters by name; and its FLOPs. Without
// torch: planning and the model read the same tables, so a plan cannot disagree with the run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

/// The description of one decoder. Members are named as the keys of the run file's [model] section; config/table.cc
/// lists them with their legal values and their spelling in Hugging Face's config.json. In a run file, a head_dim or
/// vocab_size of 0 stands for a value that follows from other facts; make_architecture() fills it in.
struct Architecture {
  std::string architecture = "llama";  // the family of config/hf_family.h in whose form files are written
  int64_t hidden_size = 256;
  int64_t intermediate_size = 688;
  int64_t num_hidden_layers = 6;
  int64_t num_attention_heads = 8;
  int64_t num_key_value_heads = 4;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 1024;
  std::string norm = "rms_norm";  // rms_norm | layer_norm, which has biases
  double rms_norm_eps = 1e-5;     // of either norm
  bool qk_norm = false;  // an RMS norm of each query head and each key head, before rotary positions
  std::string mlp = "swiglu";  // swiglu: gate and up projections | gelu, gelu_tanh: one projection c_fc
  std::string positions = "rotary";  // rotary: turns queries and keys | learned: adds a vector to each embedding
  double rope_theta = 10000.0;
  std::string rope_scaling_type = "none";  // none | linear | llama3 | yarn; the numbers below are for the last three
  double rope_scaling_factor = 8.0;
  double rope_scaling_low_freq_factor = 1.0;
  double rope_scaling_high_freq_factor = 4.0;
  int64_t rope_scaling_original_max_position_embeddings = 8192;
  double rope_scaling_beta_fast = 32, rope_scaling_beta_slow = 1;
  double rope_scaling_attention_factor = 0;  // 0: 0.1 ln(factor) + 1
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // the query, key, value and output projections have biases
  bool qkv_bias = false;        // only the query, key and value projections have biases
  bool mlp_bias = false;        // the projections of the MLP have biases
  double attn_logit_softcapping = 0.0;   // c: a score s of attention becomes c tanh(s / c); 0 = not capped
  double final_logit_softcapping = 0.0;  // c: the logits are c tanh(y / c) for products y of the head; 0 = not capped
  double dropout = 0.0;
  double initializer_range = 0.02;
  std::string objective = "causal";  // causal | masked: every token attends to the whole sequence
  // Number of tokens a token attends to, itself included (to each side, if not causal); 0 = unlimited.
  int64_t sliding_window = 0;
  int64_t linformer_length = 0;  // number of summary rows that replace keys and values (Linformer); 0 = full attention
  int64_t linformer_tokens = 0;  // sequence length of Linformer's projections; no key of the run file

  bool causal() const { return objective == "causal"; }
  bool rotary() const { return positions == "rotary"; }
  bool operator==(const Architecture&) const = default;
};

/// Relation of a parameter to the residual stream, which decides how meshes shard it. from_stream reads the stream (q,
/// k, v, gate, up). to_stream writes to it (output and down projections). gain and norm_bias have the stream's width.
/// head_gain is shared by all heads of a layer. position has a row for each position, of the stream's width. projection
/// (Linformer) has one row for each token of a sequence.
enum class ParameterRole {
  embedding, position, gain, norm_bias, head_gain, from_stream, from_stream_bias, to_stream, to_stream_bias, head,
  projection
};

/// One parameter: its Hugging Face name, its unsharded shape ([out, in] for a matrix) and its initial values. Adjacent
/// parameters with the same fused name are used as one matrix (q, k, v; gate, up). If they have biases, these follow
/// the matrix and are used as one vector.
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  std::string fused = {};
  double init_std = 0.0;   // 0: initialized to one (a norm's gain) or to zero (a bias)
  int layer = -1;          // -1: before the first block; num_hidden_layers: after the last
  ParameterRole role = ParameterRole::gain;
  int group = 0;           // parameters of one group are adjacent in a flat buffer
  std::string copy_of = {};  // name of the parameter that this one always equals; a copy is stored in no file
  /// This rank's shard: for each dim the first index and one past the last. Empty: the parameter is unsharded.
  std::vector<std::pair<int64_t, int64_t>> held = {};

  int64_t size() const;  // elements of the unsharded parameter
  std::vector<int64_t> shard_shape() const;
  int64_t shard_size() const;
  /// The name under which the parameter is initialized, saved and loaded.
  const std::string& global_name() const { return copy_of.empty() ? name : copy_of; }
  bool is_matrix() const { return shape.size() >= 2; }
  bool is_bias() const {
    return role == ParameterRole::from_stream_bias || role == ParameterRole::to_stream_bias ||
           role == ParameterRole::norm_bias;
  }
};

/// All parameters in the model's order: embedding, blocks, final norm, head (absent when tied).
std::vector<ParameterInfo> parameter_table(const Architecture& a);
int64_t num_parameters(const Architecture& a);
/// True for biases that shift all scores of a softmax row by the same amount, so that their gradient is 0 but for
/// roundings: those of keys, without rotary positions, norms of heads or Linformer.
bool is_ignored_by_softmax(const Architecture& a, const ParameterInfo& parameter);

/// Offsets, in elements, of this rank's parameter shards in a flat buffer: group by group, each in the model's order. A
/// weight is one parameter, or several adjacent ones with the same fused name. Each weight starts at a multiple of
/// kFlatAlignElements; the gaps between weights stay zero.
struct FlatLayout {
  std::vector<int64_t> parameter_offsets;
  std::vector<std::pair<int64_t, int64_t>> weights;  // offset and size in elements
  std::vector<std::pair<size_t, size_t>> members;    // first parameter of each weight, one past its last
  std::vector<std::pair<int64_t, int64_t>> groups;   // first element, one past the last
  int64_t elements = 0;
};
inline constexpr int64_t kFlatAlignElements = 32;
FlatLayout flat_layout(const std::vector<ParameterInfo>& parameters);

/// FLOPs to train on one token, forward and backward, by Megatron's convention: see training_flops() in block_plan.h.
/// The logits count 6 x the head's weights. Recomputation is not counted.
double training_flops_per_token(const Architecture& a, int64_t seq_len);

/// The inverse frequencies theta^(-2k/D) for k < D/2, after scaling. linear divides them by the factor; llama3 scales
/// by wavelength, as Llama 3.1 does in Hugging Face's modeling_rope_utils. yarn divides those that turn less than
/// beta_slow times in the original context, keeps those that turn more than beta_fast times, and mixes the others
/// ("NTK-by-parts"): Peng et al. 2023, arXiv 2309.00071, section 3.2.
std::vector<double> inverse_frequencies(const Architecture& a);
/// The factor of rotated queries and keys: 1, or with yarn the one of section 3.4 of that paper.
double rotary_factor(const Architecture& a);

/// Number of rows (tokens) whose logits the loss holds at a time, on a CPU or a GPU.
int64_t loss_chunk_rows(int64_t vocab_size, bool on_gpu);
/// Number of queries whose capped scores attention holds at a time. `heads` counts the query heads of all sequences.
int64_t capped_score_rows(int64_t heads, int64_t keys, bool on_gpu);

}  // namespace orthant

#include "config/hf_family.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace orthant {
namespace {

constexpr HfSpelling kGpt2Spellings[] = {
    {"hidden_size", "n_embd"},
    {"intermediate_size", "n_inner"},
    {"num_hidden_layers", "n_layer"},
    {"num_attention_heads", "n_head"},
    {"max_position_embeddings", "n_positions"},
    {"hidden_act", "activation_function"},
    {"num_key_value_heads", ""},
    {"head_dim", ""},
    {"rms_norm_eps", ""},
    {"attention_bias", ""},
    {"mlp_bias", ""},
};

constexpr HfModule kGpt2Modules[] = {
    {"model.embed_tokens", "wte"},        {"model.embed_positions", "wpe"},      {"model.norm", "ln_f"},
    {"input_layernorm", "ln_1"},          {"self_attn.q_proj", "attn.c_attn"},   {"self_attn.k_proj", "attn.c_attn"},
    {"self_attn.v_proj", "attn.c_attn"},  {"self_attn.o_proj", "attn.c_proj"},   {"post_attention_layernorm", "ln_2"},
};
constexpr HfModule kPhi3Modules[] = {
    {"self_attn.q_proj", "self_attn.qkv_proj"}, {"self_attn.k_proj", "self_attn.qkv_proj"},
    {"self_attn.v_proj", "self_attn.qkv_proj"}, {"mlp.gate_proj", "mlp.gate_up_proj"},
    {"mlp.up_proj", "mlp.gate_up_proj"},
};
constexpr std::string_view kDropoutsOfTheStream[] = {"embd_pdrop", "resid_pdrop"};  // of GPT-2 and Phi-3

constexpr HfFamily kFamilies[] = {
    {.model_type = "llama", .class_prefix = "Llama"},
    {.model_type = "mistral",
     .class_prefix = "Mistral",
     .window = true,
     .attention_bias = false,
     .mlp_bias = false,
     .defaults = {.num_key_value_heads = 8, .max_position_embeddings = 131072, .sliding_window = 4096}},
    {.model_type = "qwen2",
     .class_prefix = "Qwen2",
     .attention_bias = false,
     .mlp_bias = false,
     .qkv_bias = true,
     .window_switch = "use_sliding_window",
     .defaults = {.num_key_value_heads = 32, .max_position_embeddings = 32768}},
    {.model_type = "qwen3",
     .class_prefix = "Qwen3",
     .qk_norm = true,
     .mlp_bias = false,
     .window_switch = "use_sliding_window",
     .defaults = {.num_key_value_heads = 32, .head_dim = 128, .max_position_embeddings = 32768}},
    {.model_type = "phi3",
     .class_prefix = "Phi3",
     .window = true,
     .attention_bias = false,
     .mlp_bias = false,
     .stream_dropouts = kDropoutsOfTheStream,
     .storage = {.modules = kPhi3Modules},
     .defaults = {.max_position_embeddings = 4096, .eps = 1e-5}},
    {.model_type = "starcoder2",
     .class_prefix = "Starcoder2",
     .norm = "layer_norm",
     .mlp = "gelu_tanh",
     .hidden_act = "gelu_pytorch_tanh",
     .window = true,
     .both_biases = "use_bias",
     .eps = "norm_epsilon",
     .defaults = {.num_key_value_heads = 2,
                  .max_position_embeddings = 4096,
                  .eps = 1e-5,
                  .initializer_range = 0.018042,
                  .tie_word_embeddings = true}},
    {.model_type = "gpt2",
     .class_prefix = "GPT2",
     .class_suffix = "LMHeadModel",
     .norm = "layer_norm",
     .mlp = "gelu_tanh",
     .hidden_act = "gelu_new",
     .positions = "learned",
     .always_biased = true,
     .eps = "layer_norm_epsilon",
     .attention_dropout = "attn_pdrop",
     .stream_dropouts = kDropoutsOfTheStream,
     .spellings = kGpt2Spellings,
     .storage = {.prefix = "transformer.", .layers = "h.", .transposed = true, .modules = kGpt2Modules},
     .defaults = {.max_position_embeddings = 1024,
                  .mlp_width_factor = 4,
                  .eps = 1e-5,
                  .tie_word_embeddings = true}},
    {.model_type = "orthant", .class_prefix = "Orthant", .norm = "", .mlp = "", .window = true},
};

bool expresses(const HfFamily& family, const Architecture& model) {
  if (family.norm.empty()) return true;
  // transformers selects the class by model_type, so it would read such a model as one without the feature.
  const bool capped = model.attn_logit_softcapping > 0 || model.final_logit_softcapping > 0;
  if (!model.causal() || capped || model.linformer_length > 0) return false;
  const bool has_key_heads = !family.spelling("num_key_value_heads").empty();
  if (!has_key_heads && model.num_key_value_heads != model.num_attention_heads) return false;
  const bool has_head_dim = !family.spelling("head_dim").empty();
  if (!has_head_dim && model.head_dim * model.num_attention_heads != model.hidden_size) return false;
  if (family.always_biased && !(model.attention_bias && model.mlp_bias)) return false;
  return model.positions == family.positions && model.norm == family.norm && model.mlp == family.mlp &&
         model.qk_norm == family.qk_norm && (family.window || model.sliding_window == 0) &&
         (family.attention_bias || !model.attention_bias) && family.qkv_bias == model.qkv_bias &&
         (family.mlp_bias || !model.mlp_bias) && (family.both_biases.empty() || model.attention_bias == model.mlp_bias);
}

}  // namespace

std::string_view HfFamily::spelling(std::string_view key) const {
  const auto found = std::ranges::find(spellings, key, &HfSpelling::key);
  return found == spellings.end() ? key : found->own;
}

const HfFamily* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(kFamilies, model_type, &HfFamily::model_type);
  return found == std::end(kFamilies) ? nullptr : found;
}

void set_blocks(const HfFamily& family, Architecture& model) {
  if (family.norm.empty()) return;
  model.norm = family.norm;
  model.mlp = family.mlp;
  model.positions = family.positions;
  model.qk_norm = family.qk_norm;
  model.qkv_bias = family.qkv_bias;
  model.attention_bias = model.mlp_bias = family.always_biased || !family.both_biases.empty();
  model.tie_word_embeddings = family.defaults.tie_word_embeddings;
  if (family.spelling("num_key_value_heads").empty()) model.num_key_value_heads = model.num_attention_heads;
}

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const HfFamily& family : kFamilies) names.emplace_back(family.model_type);
  return names;
}

const HfFamily& family_of(const Architecture& model) {
  const HfFamily* chosen = find_family(model.architecture);
  if (chosen != nullptr && expresses(*chosen, model)) return *chosen;
  return *std::ranges::find_if(kFamilies, [&](const HfFamily& family) { return expresses(family, model); });
}

std::string architecture_text(const Architecture& model) {
  std::string text = fmt::format("{}, {}, hidden {}, {} ({} key-value)", family_of(model).model_type,
                                 counted(model.num_hidden_layers, "layer"), model.hidden_size,
                                 counted(model.num_attention_heads, "head"), model.num_key_value_heads);
  if (model.norm != "rms_norm") text += ", " + model.norm;
  if (model.mlp != "swiglu") text += ", " + model.mlp;
  if (model.qk_norm) text += ", norms of heads";
  if (!model.rotary()) text += ", learned positions";
  return text;
}

}  // namespace orthant

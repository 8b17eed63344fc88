// Writes config.json and generation_config.json.
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "checkpoint/hf_config.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

std::string torch_dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "float32";
    case Dtype::bf16:
      return "bfloat16";
    case Dtype::f16:
      return "float16";
    case Dtype::f64:
      return "float64";
    default:
      throw LogicError(fmt::format("no model has its weights in {}", dtype_name(dtype)));
  }
}

// Only the scaling, in the form of rope_scaling in transformers 4.
Json rope_scaling(const HfConfig& config) {
  Json rope = {{"rope_type", config.rope_scaling_type}, {"factor", config.rope_scaling_factor}};
  if (config.rope_scaling_type == "llama3") {
    rope["low_freq_factor"] = config.rope_scaling_low_freq_factor;
    rope["high_freq_factor"] = config.rope_scaling_high_freq_factor;
    rope["original_max_position_embeddings"] = config.rope_scaling_original_max_position_embeddings;
  }
  return rope;
}

void put_token_ids(Json& object, const HfConfig& config) {
  if (config.bos_token_id) object["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) object["eos_token_id"] = config.eos_token_ids.front();
  if (config.eos_token_ids.size() > 1) object["eos_token_id"] = config.eos_token_ids;
  if (config.pad_token_id) object["pad_token_id"] = *config.pad_token_id;
}

}  // namespace

std::string config_json(const HfConfig& config) {
  const std::string& type = config.rope_scaling_type;
  ORTHANT_CHECK(type == "none" || type == "linear" || type == "llama3", type);
  const bool scaled = type != "none";
  const bool windowed = config.sliding_window > 0;         // transformers' Llama would ignore it
  const bool capped = config.final_logit_softcapping > 0;  // transformers' Llama and Mistral would ignore it
  Json object = {
      // No loader knows these modified names. Therefore none takes a model of masked tokens for a causal one, or a
      // model with capped logits for one without.
      {"architectures",
       {(windowed ? "Mistral" : "Llama") + std::string(capped ? "Softcapped" : "") +
        std::string(config.is_causal ? "ForCausalLM" : "ForMaskedLM")}},
      {"model_type", windowed ? "mistral" : "llama"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", config.max_position_embeddings},
      {"rms_norm_eps", config.rms_norm_eps},
      {"initializer_range", config.initializer_range},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"attention_bias", config.attention_bias},
      {"mlp_bias", config.mlp_bias},
      {"attention_dropout", 0.0},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", scaled ? rope_scaling(config) : Json(nullptr)},
      {"torch_dtype", torch_dtype_name(config.torch_dtype)},
  };
  if (windowed) object["sliding_window"] = config.sliding_window;
  if (!config.is_causal) object["is_causal"] = false;
  if (capped) object["final_logit_softcapping"] = config.final_logit_softcapping;
  if (config.linformer_length > 0) {
    object["linformer_length"] = config.linformer_length;
    object["linformer_tokens"] = config.linformer_tokens;
  }
  // transformers 5 keeps theta and scaling in one dictionary. Equal values satisfy both readers.
  object["rope_parameters"] = scaled ? rope_scaling(config) : Json{{"rope_type", "default"}};
  object["rope_parameters"]["rope_theta"] = config.rope_theta;
  // LlamaConfig replaces a missing id by its default, 1 or 2; null means none.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) object[key] = nullptr;
  put_token_ids(object, config);
  const Json others = parse_json(config.other_keys, "HfConfig::other_keys");
  for (const auto& [key, value] : others.items()) {
    if (!object.contains(key)) object[key] = value;
  }
  return object.dump(2) + "\n";
}

std::string generation_config_json(const HfConfig& config) {
  Json object = {{"_from_model_config", true}};
  put_token_ids(object, config);
  return object.dump(2) + "\n";
}

}  // namespace orthant

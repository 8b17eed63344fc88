// Writes config.json and generation_config.json.
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "config/hf_config.h"
#include "config/hf_family.h"
#include "config/table.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

// Only the scaling, in the form of rope_scaling in transformers 4.
Json rope_scaling(const Architecture& model) {
  Json rope = {{"rope_type", model.rope_scaling_type}, {"factor", model.rope_scaling_factor}};
  if (model.rope_scaling_type == "linear") return rope;
  if (model.rope_scaling_type == "llama3") {
    rope["low_freq_factor"] = model.rope_scaling_low_freq_factor;
    rope["high_freq_factor"] = model.rope_scaling_high_freq_factor;
  } else {
    rope["beta_fast"] = model.rope_scaling_beta_fast;
    rope["beta_slow"] = model.rope_scaling_beta_slow;
    rope["attention_factor"] = rotary_factor(model);
  }
  rope["original_max_position_embeddings"] = model.rope_scaling_original_max_position_embeddings;
  return rope;
}

std::string architecture_name(const HfFamily& family, const Architecture& model) {
  return std::string(family.class_prefix) + std::string(model.causal() ? family.class_suffix : "ForMaskedLM");
}

// Writes the keys by which the family's file differs from Llama's.
void put_family_keys(Json& object, const HfFamily& family, const Architecture& model) {
  if (family.norm.empty()) {
    object["positions"] = model.positions;
    object["norm"] = model.norm;
    object["mlp"] = model.mlp;
    object["qk_norm"] = model.qk_norm;
    object["qkv_bias"] = model.qkv_bias;
  } else {
    object[std::string(family.spelling("hidden_act"))] = std::string(family.hidden_act);
    object[std::string(family.eps)] = model.rms_norm_eps;
  }
  if (!family.both_biases.empty()) object[std::string(family.both_biases)] = model.attention_bias;
  // GPT-2's class drops 0.1 of everything if these keys are absent.
  object[std::string(family.attention_dropout)] = 0.0;
  for (const std::string_view key : family.stream_dropouts) object[std::string(key)] = model.dropout;
  if (!family.window_switch.empty()) object[std::string(family.window_switch)] = false;
  if (family.window && model.sliding_window == 0) object["sliding_window"] = nullptr;
}

// Writes the keys of the table of config/table.h that are numbers or flags.
void put_model_keys(Json& object, const HfFamily& family, const Architecture& model) {
  Config config, defaults;
  static_cast<Architecture&>(config.model) = model;
  for (const Key* key : model_keys()) {
    const std::string_view spelling = family.spelling(key->hugging_face.spelling);
    if (!model.rotary() && spelling.starts_with("rope_")) continue;
    if (spelling.empty() || spelling.find('.') != std::string_view::npos) continue;
    if (key->hugging_face.only_if_set && value_text(*key, config) == value_text(*key, defaults)) continue;
    std::visit(
        [&](auto* value) {
          using Value = std::remove_pointer_t<decltype(value)>;
          if constexpr (std::is_arithmetic_v<Value>) object[std::string(spelling)] = *value;
        },
        key->field(config));
  }
  if (!model.causal()) object["is_causal"] = false;
  if (model.linformer_length > 0) object["linformer_tokens"] = model.linformer_tokens;
}

void put_token_ids(Json& object, const HfConfig& config) {
  if (config.bos_token_id) object["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) object["eos_token_id"] = config.eos_token_ids.front();
  if (config.eos_token_ids.size() > 1) object["eos_token_id"] = config.eos_token_ids;
  if (config.pad_token_id) object["pad_token_id"] = *config.pad_token_id;
}

}  // namespace

std::string config_json(const HfConfig& config) {
  const Architecture& model = config.model;
  const std::string& type = model.rope_scaling_type;
  ORTHANT_CHECK(type == "none" || type == "linear" || type == "llama3" || type == "yarn", type);
  const bool scaled = type != "none";
  const HfFamily& family = family_of(model);
  Json object = {{"architectures", {architecture_name(family, model)}},
                 {"model_type", std::string(family.model_type)},
                 {"torch_dtype", config.torch_dtype}};
  put_model_keys(object, family, model);
  put_family_keys(object, family, model);
  // transformers 5 keeps theta and scaling in one dictionary. Equal values satisfy both readers.
  if (model.rotary()) {
    object["rope_scaling"] = scaled ? rope_scaling(model) : Json(nullptr);
    object["rope_parameters"] = scaled ? rope_scaling(model) : Json{{"rope_type", "default"}};
    object["rope_parameters"]["rope_theta"] = model.rope_theta;
  }
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

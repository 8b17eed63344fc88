// Writes config.json and generation_config.json.
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
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

std::string unknown_keys_warning(const HfConfig& config, const std::string& source) {
  // Keys that transformers 4 and 5 write for every model, or for one of these families, and that do not change logits.
  static const std::set<std::string_view> harmless = {"_attn_implementation_autoset",
                                                      "_name_or_path",
                                                      "add_cross_attention",
                                                      "attention_dropout",
                                                      "attn_pdrop",
                                                      "auto_map",
                                                      "bad_words_ids",
                                                      "begin_suppress_tokens",
                                                      "chunk_size_feed_forward",
                                                      "cross_attention_hidden_size",
                                                      "decoder_start_token_id",
                                                      "diversity_penalty",
                                                      "do_sample",
                                                      "early_stopping",
                                                      "embd_pdrop",
                                                      "encoder_no_repeat_ngram_size",
                                                      "exponential_decay_length_penalty",
                                                      "finetuning_task",
                                                      "forced_bos_token_id",
                                                      "forced_eos_token_id",
                                                      "id2label",
                                                      "is_decoder",
                                                      "is_encoder_decoder",
                                                      "label2id",
                                                      "length_penalty",
                                                      "max_length",
                                                      "max_window_layers",
                                                      "min_length",
                                                      "no_repeat_ngram_size",
                                                      "num_beam_groups",
                                                      "num_beams",
                                                      "num_return_sequences",
                                                      "output_attentions",
                                                      "output_hidden_states",
                                                      "output_scores",
                                                      "prefix",
                                                      "pretraining_tp",
                                                      "problem_type",
                                                      "pruned_heads",
                                                      "remove_invalid_values",
                                                      "reorder_and_upcast_attn",
                                                      "repetition_penalty",
                                                      "return_dict",
                                                      "return_dict_in_generate",
                                                      "sep_token_id",
                                                      "summary_activation",
                                                      "summary_first_dropout",
                                                      "summary_proj_to_labels",
                                                      "summary_type",
                                                      "summary_use_proj",
                                                      "suppress_tokens",
                                                      "task_specific_params",
                                                      "resid_pdrop",
                                                      "temperature",
                                                      "tf_legacy_loss",
                                                      "tie_encoder_decoder",
                                                      "tokenizer_class",
                                                      "top_k",
                                                      "top_p",
                                                      "torchscript",
                                                      "transformers_version",
                                                      "typical_p",
                                                      "use_bfloat16",
                                                      "use_cache"};
  std::vector<std::string> unknown;
  const Json others = parse_json(config.other_keys, "HfConfig::other_keys");
  for (const auto& [key, value] : others.items()) {
    if (!value.is_null() && !harmless.contains(key)) unknown.push_back(key);
  }
  if (unknown.empty()) return "";
  return fmt::format(
      "{} has keys that Orthant does not read: {}; if one of them changes the computation of the model, the results "
      "differ from those of transformers",
      source, join(unknown, ", "));
}

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
  // Dropouts in the file of GPT-2 and Phi-3 are not read. They are written as they were.
  const auto is_dropout = [&](const std::string& key) {
    return key == family.attention_dropout ||
           std::ranges::find(family.stream_dropouts, key) != family.stream_dropouts.end();
  };
  for (const auto& [key, value] : others.items()) {
    if (!object.contains(key) || is_dropout(key)) object[key] = value;
  }
  return object.dump(2) + "\n";
}

std::string generation_config_json(const HfConfig& config) {
  if (!config.generation_config.empty()) return config.generation_config;
  Json object = {{"_from_model_config", true}};
  put_token_ids(object, config);
  return object.dump(2) + "\n";
}

}  // namespace orthant

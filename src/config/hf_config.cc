// Reads config.json. Every key that changes the computation is either interpreted or refused; the others are kept.
#include "config/hf_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.h"
#include "base/file_errors.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "config/hf_family.h"
#include "config/hf_fields.h"
#include "config/table.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGenerationConfig = "generation_config.json";

// Without an attention_factor, it follows from the factor and, if the file has both, from mscale and mscale_all_dim.
Architecture read_yarn(HfFields& fields, Architecture model) {
  model.rope_scaling_attention_factor = 0;
  model.rope_scaling_original_max_position_embeddings =
      fields.integer("original_max_position_embeddings", model.max_position_embeddings);
  model.rope_scaling_beta_fast = fields.positive("beta_fast", 32);
  model.rope_scaling_beta_slow = fields.positive("beta_slow", 1);
  if (model.rope_scaling_beta_fast <= model.rope_scaling_beta_slow) {
    fields.refuse("beta_fast", fmt::format("expected more than beta_slow = {}", model.rope_scaling_beta_slow));
  }
  if (!fields.boolean("truncate", true)) fields.refuse("truncate", "must be true");
  if (!(model.rope_theta > 1)) fields.refuse("rope_theta", "expected more than 1 for yarn");
  const double scale = fields.not_negative("mscale", 0), of_all = fields.not_negative("mscale_all_dim", 0);
  const double growth = rotary_factor(model) - 1;
  const double follows = scale > 0 && of_all > 0 ? (scale * growth + 1) / (of_all * growth + 1) : growth + 1;
  model.rope_scaling_attention_factor = fields.positive("attention_factor", follows);
  return model;
}

// Reads one rope dictionary: rope_scaling of transformers 4, or rope_parameters of transformers 5.
Architecture read_rope(const Json& object, Architecture model, const std::string& source) {
  if (!object.is_object()) throw DataError(fmt::format("{}: expected an object", source));
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      throw DataError(
          fmt::format("{}.{}: rotary parameters per layer type are not supported; expected one set for all "
                      "layers",
                      source, key));
    }
  }
  HfFields fields(object, source);
  model.rope_theta = fields.positive("rope_theta", model.rope_theta);
  const auto old_type = fields.text("type");  // older name of rope_type
  const std::string type = fields.text("rope_type").value_or(old_type.value_or("default"));
  const Json* partial = fields.find("partial_rotary_factor");
  if (partial != nullptr && *partial != 1) fields.refuse("partial_rotary_factor", "must be 1");
  if (fields.find("mrope_section") != nullptr) fields.refuse("mrope_section", "is not supported");
  if (type == "default") return model;
  if (type != "linear" && type != "llama3" && type != "yarn") {
    throw DataError(
        fmt::format("{}.rope_type = \"{}\": this kind of rotary scaling is not supported; expected default, "
                    "linear, llama3 or yarn",
                    source, type));
  }
  model.rope_scaling_type = type;
  model.rope_scaling_factor = fields.positive("factor", std::nullopt);
  if (type == "linear") return model;
  if (type == "yarn") return read_yarn(fields, model);
  model.rope_scaling_low_freq_factor = fields.positive("low_freq_factor", std::nullopt);
  model.rope_scaling_high_freq_factor = fields.positive("high_freq_factor", std::nullopt);
  model.rope_scaling_original_max_position_embeddings =
      fields.integer("original_max_position_embeddings", std::nullopt);
  if (model.rope_scaling_high_freq_factor <= model.rope_scaling_low_freq_factor) {
    fields.refuse("high_freq_factor",
                  fmt::format("expected more than low_freq_factor = {}", model.rope_scaling_low_freq_factor));
  }
  return model;
}

void read_all_rope(HfFields& fields, Architecture& model, const std::string& source) {
  const double theta = model.rope_theta = fields.positive("rope_theta", model.rope_theta);
  const Architecture plain = model;
  const Json* v4 = fields.find("rope_scaling");
  const Json* v5 = fields.find("rope_parameters");
  if (v4 != nullptr) model = read_rope(*v4, plain, source + ": rope_scaling");
  if (v5 == nullptr) return;
  const Architecture other = read_rope(*v5, plain, source + ": rope_parameters");
  // A file of transformers 5 may have rope_theta and rope_parameters, without rope_scaling.
  const bool has_theta = fields.find("rope_theta") != nullptr;
  if (v4 != nullptr ? other != model : (has_theta && other.rope_theta != theta)) {
    fields.refuse("rope_parameters", "contradicts rope_theta and rope_scaling of the same file");
  }
  model = other;
}

const HfFamily& read_family(HfFields& fields) {
  const HfFamily* family = find_family(fields.text("model_type").value_or(""));
  if (family == nullptr) {
    const std::initializer_list<const char*> expert_keys = {"num_experts", "num_local_experts", "n_routed_experts"};
    const bool has_experts =
        std::ranges::any_of(expert_keys, [&](const char* key) { return fields.find(key) != nullptr; });
    fields.refuse("model_type", fmt::format("must be {}{}", join_or(family_names()),
                                            has_experts ? "; models with experts are not supported" : ""));
  }
  return *family;
}

// Refuses settings that change the computation in a way that Orthant does not support.
void refuse_unsupported(HfFields& fields, const HfFamily& family) {
  const auto refuse_flag = [&](const char* key, bool allowed, const std::string& why) {
    if (!allowed && fields.boolean(key, false)) fields.refuse(key, why + "; expected false");
  };
  const std::string type(family.model_type);
  refuse_flag("attention_bias", family.attention_bias, fmt::format("a \"{}\" has no such biases", type));
  refuse_flag("mlp_bias", family.mlp_bias, fmt::format("a \"{}\" has no such biases", type));
  if (!family.window_switch.empty()) {
    refuse_flag(std::string(family.window_switch).c_str(), false, "a sliding window of some layers is not supported");
  }
  const std::string own_act(family.hidden_act);
  const std::string act_key(family.spelling("hidden_act"));
  if (!own_act.empty() && fields.text(act_key).value_or(own_act) != own_act) {
    fields.refuse(act_key, fmt::format("only \"{}\" is supported in a \"{}\"", family.hidden_act, type));
  }
  refuse_flag("scale_attn_by_inverse_layer_idx", false, "scores are divided by the root of head_dim only");
  refuse_flag("add_cross_attention", false, "attention to an encoder is not supported");
  if (!fields.boolean("scale_attn_weights", true)) fields.refuse("scale_attn_weights", "must be true");
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("quantization_config", "quantized weights are not supported; store them as float32 or bfloat16");
  }
  for (const char* key : {"attention_dropout", "residual_dropout", "embedding_dropout"}) {
    const Json* dropout = fields.find(key);
    if (dropout != nullptr && *dropout != 0) fields.refuse(key, "not supported; expected 0, null or no such key");
  }
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (!family.norm.empty() && fields.not_negative(key, 0) > 0) {
      fields.refuse(key, fmt::format("transformers ignores it in a \"{}\"; remove it, and to train with this cap, set "
                                     "model.{} in the run file",
                                     type, key));
    }
  }
  const Json* partial = fields.find("partial_rotary_factor");
  if (partial != nullptr && *partial != 1) fields.refuse("partial_rotary_factor", "must be 1");
  const Json* layers = fields.find("layer_types");
  for (const Json& layer : layers != nullptr && layers->is_array() ? *layers : Json::array()) {
    if (layer != "full_attention") fields.refuse("layer_types", "every layer must be \"full_attention\"");
  }
}

// A file of a family without windows that states one was not written for the family's class in transformers.
int64_t read_sliding_window(HfFields& fields, const HfFamily& family) {
  const Json* value = fields.find("sliding_window");
  if (value == nullptr) return fields.has_null("sliding_window") ? 0 : family.defaults.sliding_window;
  const int64_t window = fields.integer("sliding_window", std::nullopt, 0);
  if (!family.window_switch.empty()) return 0;  // its switch is off
  if (window > 0 && !family.window) {
    fields.refuse("sliding_window",
                  fmt::format("a \"{}\" has none; expected 0, null or no such key", family.model_type));
  }
  return window;
}

// A key of the run file's [model] that has a few legal texts.
std::string read_choice(HfFields& fields, const std::string& name) {
  const std::string text = fields.text(name).value_or("");
  const auto& choices = find_key("model." + name)->legal.choices;
  if (std::ranges::find(choices, text) == choices.end()) fields.refuse(name, "must be " + join_or(choices));
  return text;
}

// The operations of a block that the family stands for.
void read_operations(HfFields& fields, const HfFamily& family, Architecture& model) {
  if (family.norm.empty()) {
    model.norm = read_choice(fields, "norm");
    model.mlp = read_choice(fields, "mlp");
    model.qk_norm = fields.boolean("qk_norm", false);
    if (fields.find("positions") != nullptr) model.positions = read_choice(fields, "positions");
    model.qkv_bias = fields.boolean("qkv_bias", false);
    return;
  }
  model.rms_norm_eps = fields.positive(std::string(family.eps), model.rms_norm_eps);
  if (family.both_biases.empty()) return;
  model.attention_bias = model.mlp_bias = fields.boolean(std::string(family.both_biases), model.mlp_bias);
}

std::string read_dtype(HfFields& fields) {
  const auto v5 = fields.text("dtype");
  const auto v4 = fields.text("torch_dtype");
  const std::string name = v5 ? *v5 : v4.value_or("float32");
  for (const char* known : {"float32", "bfloat16", "float16", "float64"}) {
    if (name == known) return name;
  }
  fields.refuse(v5 ? "dtype" : "torch_dtype", "expected float32, bfloat16, float16 or float64");
}

std::vector<int64_t> read_end_tokens(HfFields& fields) {
  const Json* eos = fields.find("eos_token_id");
  if (eos == nullptr) return {};
  if (!eos->is_array()) return {fields.integer("eos_token_id", std::nullopt, -1)};
  std::vector<int64_t> ids;
  for (const Json& id : *eos) {
    if (!id.is_number_integer() || id > kHfSizeLimit || id < -1) {
      fields.refuse("eos_token_id", "expected token ids, or -1 for none");
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

void read_token_ids(HfFields& fields, HfConfig& config) {
  const auto one = [&](const std::string& key) -> std::optional<int64_t> {
    if (fields.find(key) == nullptr) return std::nullopt;
    return fields.integer(key, std::nullopt, -1);  // -1 is the older LLaMA notation for "none"
  };
  config.bos_token_id = one("bos_token_id");
  config.pad_token_id = one("pad_token_id");
  config.eos_token_ids = read_end_tokens(fields);
}

// True for keys that read_model_keys() reads: a number or a flag under a name of its own.
bool is_plain(const Key& key, const Field& field) {
  return !key.hugging_face.spelling.empty() && !key.name.starts_with("rope_") && key.name != "sliding_window" &&
         !std::holds_alternative<std::string*>(field);
}

// Reads the keys of the table of config/table.h into the model.
void read_model_keys(HfFields& fields, const HfFamily& family, Architecture& model) {
  const HfDefaults& defaults = family.defaults;
  const std::set<std::string_view> required = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                                               "num_attention_heads"};
  model.max_position_embeddings = defaults.max_position_embeddings;
  model.rms_norm_eps = defaults.eps;
  model.initializer_range = defaults.initializer_range;
  set_blocks(family, model);
  const auto fallback = [&](const std::string& name, int64_t by_class, int64_t otherwise) {
    return by_class == 0 || fields.has_null(name) ? otherwise : by_class;
  };
  Config config;
  static_cast<Architecture&>(config.model) = model;
  for (const Key* key : model_keys()) {
    const Field field = key->field(config);
    if (!is_plain(*key, field)) continue;
    const std::string_view llama_name = key->hugging_face.spelling;
    const std::string name(family.spelling(llama_name));
    if (name.empty()) continue;
    if (auto* const* flag = std::get_if<bool*>(&field)) {
      **flag = fields.boolean(name, **flag);
    } else if (auto* const* number = std::get_if<double*>(&field)) {
      **number = key->legal.above_least ? fields.positive(name, **number) : fields.not_negative(name, **number);
    } else {
      int64_t& size = *std::get<int64_t*>(field);
      const int64_t heads = config.model.num_attention_heads;
      if (name == "num_key_value_heads") size = fallback(name, defaults.num_key_value_heads, heads);
      if (name == "head_dim") size = fallback(name, defaults.head_dim, config.model.hidden_size / heads);
      const bool follows = llama_name == "intermediate_size" && defaults.mlp_width_factor > 0;
      if (follows) size = defaults.mlp_width_factor * config.model.hidden_size;
      const bool may_be_zero = key->hugging_face.only_if_set, is_required = required.contains(llama_name) && !follows;
      size = fields.integer(name, is_required ? std::nullopt : std::optional(size), may_be_zero ? 0 : 1);
    }
    if (const auto law = illegal(*key, config)) fields.refuse(name, *law);
  }
  model = config.model;
  if (family.spelling("num_key_value_heads").empty()) model.num_key_value_heads = model.num_attention_heads;
  if (family.spelling("head_dim").empty()) model.head_dim = model.hidden_size / model.num_attention_heads;
}

void check_heads(HfFields& fields, const HfFamily& family, const Architecture& model) {
  if (fields.find("head_dim") == nullptr && model.hidden_size % model.num_attention_heads != 0) {
    const std::string_view width = family.spelling("hidden_size"), heads = family.spelling("num_attention_heads");
    fields.refuse(std::string(width), fmt::format("{} = {} must divide {}", heads, model.num_attention_heads, width));
  }
  if (model.num_attention_heads % model.num_key_value_heads != 0) {
    fields.refuse("num_key_value_heads",
                  fmt::format("must divide num_attention_heads = {}", model.num_attention_heads));
  }
  const bool is_stated = !family.spelling("head_dim").empty() && fields.find("head_dim") != nullptr;
  const std::string key(is_stated ? "head_dim" : family.spelling("hidden_size"));
  if (model.head_dim == 0) fields.refuse(key, "must give each head at least one element");
  if (model.rotary() && model.head_dim % 2 != 0) {
    fields.refuse(key, fmt::format("must give each head an even number of elements, because rotary positions turn "
                                   "pairs of them, but gives {}",
                                   model.head_dim));
  }
}

}  // namespace

Architecture llama_defaults() {
  return {.hidden_size = 4096,
          .intermediate_size = 11008,
          .num_hidden_layers = 32,
          .num_attention_heads = 32,
          .num_key_value_heads = 32,
          .head_dim = 128,
          .vocab_size = 32000,
          .max_position_embeddings = 2048,
          .rms_norm_eps = 1e-6};
}

HfConfig parse_hf_config(const std::string& text, const std::string& source) {
  const Json object = parse_json(text, source);
  if (!object.is_object()) throw DataError(fmt::format("{}: expected a JSON object", source));
  constexpr size_t kMostKeys = 4096;  // the time to find and write keys grows with the square
  if (object.size() > kMostKeys) {
    throw DataError(
        fmt::format("{}: a config.json must have at most {} keys, and has {}; remove keys that are not the "
                    "model's",
                    source, kMostKeys, object.size()));
  }
  HfFields fields(object, source);
  const HfFamily& family = read_family(fields);
  refuse_unsupported(fields, family);
  HfConfig config;
  Architecture& model = config.model;
  model.architecture = family.model_type;
  read_model_keys(fields, family, model);
  read_operations(fields, family, model);
  check_heads(fields, family, model);
  model.objective = fields.boolean("is_causal", true) ? "causal" : "masked";
  model.sliding_window = read_sliding_window(fields, family);
  model.linformer_tokens = fields.integer("linformer_tokens", 0, 0);
  if (model.rotary()) read_all_rope(fields, model, source);
  read_token_ids(fields, config);
  config.torch_dtype = read_dtype(fields);
  fields.find("architectures");
  config.other_keys = fields.rest().dump();
  return config;
}

std::vector<int64_t> end_tokens(const HfConfig& config, int64_t otherwise) {
  std::vector<int64_t> listed;
  if (!config.generation_config.empty()) {
    const Json object = parse_json(config.generation_config, kGenerationConfig);
    HfFields fields(object, kGenerationConfig);
    listed = read_end_tokens(fields);
  }
  for (std::vector<int64_t> ids : {listed, config.eos_token_ids}) {
    std::erase_if(ids, [](int64_t id) { return id < 0; });  // -1 stands for none
    if (!ids.empty()) return ids;
  }
  return {otherwise};
}

std::string how_to_download(const std::string& path) {
  const auto slashes = std::ranges::count(path, '/');
  if (slashes != 1 || path.starts_with('/') || path.starts_with('.') || path.ends_with('/')) return "";
  return fmt::format(
      "; if it is a model's name on Hugging Face, download the model first: hf download {} --local-dir DIR", path);
}

HfConfig read_hf_config(const std::string& path) {
  std::filesystem::path file(path);
  if (!explained([&] { return std::filesystem::exists(file); })) {
    throw DataError(path + ": no such file or directory" + how_to_download(path));
  }
  if (explained([&] { return std::filesystem::is_directory(file); })) file /= "config.json";
  HfConfig config = parse_hf_config(read_file(file), file);
  const std::filesystem::path generation = file.parent_path() / kGenerationConfig;
  if (!std::filesystem::is_regular_file(generation)) return config;
  config.generation_config = read_file(generation);
  const Json object = parse_json(config.generation_config, generation);
  if (!object.is_object()) throw DataError(generation.string() + " must hold a JSON object");
  HfFields fields(object, generation);
  read_end_tokens(fields);  // throws for other values than ids
  return config;
}

}  // namespace orthant

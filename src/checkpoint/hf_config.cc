// Reads config.json. Every key that changes the computation is either interpreted or refused; the others are kept.
#include "checkpoint/hf_config.h"

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/errors.h"
#include "base/file_errors.h"
#include "base/json.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kSizeLimit = int64_t{1} << 31;  // of any dimension: products of two cannot overflow

// Reads keys of an object with checked types, and records which keys were read.
class Fields {
 public:
  Fields(const Json& object, std::string source) : object_(object), source_(std::move(source)) {}

  // Returns null for an absent key. A null value counts as absent, as in transformers.
  const Json* find(const std::string& key) {
    taken_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has_null(const std::string& key) const { return object_.contains(key) && object_.at(key).is_null(); }
  [[noreturn]] void refuse(const std::string& key, const std::string& expectation) const {
    const auto found = object_.find(key);
    throw DataError(fmt::format("{}: {} = {}: {}", source_, key,
                                found == object_.end() ? "(absent)" : found->dump().substr(0, 200), expectation));
  }
  int64_t integer(const std::string& key, std::optional<int64_t> fallback, int64_t minimum = 1) {
    const Json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number_integer() || value->is_number_float() ||
        (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(kSizeLimit)) ||
        value->get<int64_t>() < minimum || value->get<int64_t>() > kSizeLimit) {
      refuse(key, fmt::format("expected an integer from {} to {}", minimum, kSizeLimit));
    }
    return value->get<int64_t>();
  }
  double positive(const std::string& key, std::optional<double> fallback) {
    const Json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value == nullptr || !value->is_number() || !(value->get<double>() > 0.0)) {
      refuse(key, "expected a number above 0");
    }
    return value->get<double>();
  }
  double not_negative(const std::string& key, double fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= 0.0)) refuse(key, "expected a number of at least 0");
    return value->get<double>();
  }
  bool boolean(const std::string& key, bool fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) refuse(key, "expected true or false");
    return value->get<bool>();
  }
  std::optional<std::string> text(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) refuse(key, "expected a string");
    return value->get<std::string>();
  }
  Json rest() const {
    Json rest = Json::object();
    for (const auto& [key, value] : object_.items()) {
      if (!taken_.contains(key)) rest[key] = value;
    }
    return rest;
  }

 private:
  const Json& object_;
  std::string source_;
  std::set<std::string> taken_;
};

struct Rope {
  std::string type = "none";
  double theta = 10000.0;
  double factor = 1.0, low = 1.0, high = 4.0;
  int64_t original = 8192;
  bool operator==(const Rope&) const = default;
};

// Reads one rope dictionary: rope_scaling of transformers 4, or rope_parameters of transformers 5.
Rope read_rope(const Json& object, double theta, const std::string& source) {
  if (!object.is_object()) throw DataError(fmt::format("{}: expected an object", source));
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      throw DataError(
          fmt::format("{}.{}: rotary parameters per layer type are not supported; expected one set for all "
                      "layers",
                      source, key));
    }
  }
  Fields fields(object, source);
  Rope rope{.theta = fields.positive("rope_theta", theta)};
  const auto old_type = fields.text("type");  // older name of rope_type
  const std::string type = fields.text("rope_type").value_or(old_type.value_or("default"));
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3") {
    throw DataError(
        fmt::format("{}.rope_type = \"{}\": this kind of rotary scaling is not supported; expected default, "
                    "linear or llama3",
                    source, type));
  }
  rope.type = type;
  rope.factor = fields.positive("factor", std::nullopt);
  if (type == "linear") return rope;
  rope.low = fields.positive("low_freq_factor", std::nullopt);
  rope.high = fields.positive("high_freq_factor", std::nullopt);
  rope.original = fields.integer("original_max_position_embeddings", std::nullopt);
  if (rope.high <= rope.low)
    fields.refuse("high_freq_factor", fmt::format("expected more than low_freq_factor = {}", rope.low));
  return rope;
}

void read_all_rope(Fields& fields, HfConfig& config, const std::string& source) {
  const double theta = fields.positive("rope_theta", 10000.0);
  const Json* v4 = fields.find("rope_scaling");
  const Json* v5 = fields.find("rope_parameters");
  Rope rope{.theta = theta};
  if (v4 != nullptr) rope = read_rope(*v4, theta, source + ": rope_scaling");
  if (v5 != nullptr) {
    const Rope other = read_rope(*v5, theta, source + ": rope_parameters");
    const bool is_v4 = v4 != nullptr || fields.find("rope_theta") != nullptr;
    // A file of transformers 5 may have rope_theta and rope_parameters, without rope_scaling.
    if (v4 != nullptr ? !(other == rope) : (is_v4 && other.theta != theta)) {
      fields.refuse("rope_parameters", "contradicts rope_theta and rope_scaling of the same file");
    }
    rope = other;
  }
  config.rope_theta = rope.theta;
  config.rope_scaling_type = rope.type;
  config.rope_scaling_factor = rope.factor;
  config.rope_scaling_low_freq_factor = rope.low;
  config.rope_scaling_high_freq_factor = rope.high;
  config.rope_scaling_original_max_position_embeddings = rope.original;
}

// Refuses settings that change the computation in a way that Orthant does not support.
void refuse_unsupported(Fields& fields) {
  const auto type = fields.text("model_type");
  if (!type || (*type != "llama" && *type != "mistral")) {
    fields.refuse("model_type", "only \"llama\" and \"mistral\" are supported");
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {  // transformers' Mistral would ignore them
    if (*type == "mistral" && fields.boolean(key, false)) {
      fields.refuse(key, "only \"llama\" has biases; expected false");
    }
  }
  if (fields.text("hidden_act").value_or("silu") != "silu") fields.refuse("hidden_act", "only \"silu\" is supported");
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("quantization_config", "quantized weights are not supported; store them as float32 or bfloat16");
  }
  const Json* dropout = fields.find("attention_dropout");
  if (dropout != nullptr && *dropout != 0) {
    fields.refuse("attention_dropout", "not supported; expected 0, null or no such key");
  }
  const Json* partial = fields.find("partial_rotary_factor");
  if (partial != nullptr && *partial != 1) fields.refuse("partial_rotary_factor", "only 1 is supported");
}

// Only Mistral has a sliding window. A llama file that states one was not written for transformers' Llama.
int64_t read_sliding_window(Fields& fields) {
  constexpr int64_t kMistralDefault = 4096;
  const bool mistral = fields.text("model_type") == "mistral";
  const Json* value = fields.find("sliding_window");
  if (value == nullptr) return mistral && !fields.has_null("sliding_window") ? kMistralDefault : 0;
  const int64_t window = fields.integer("sliding_window", std::nullopt, 0);
  if (window > 0 && !mistral)
    fields.refuse("sliding_window", "only \"mistral\" has one; expected 0, null or no such key");
  return window;
}

Dtype read_dtype(Fields& fields) {
  const auto v5 = fields.text("dtype");
  const auto v4 = fields.text("torch_dtype");
  const std::string name = v5 ? *v5 : v4.value_or("float32");
  if (name == "float32") return Dtype::f32;
  if (name == "bfloat16") return Dtype::bf16;
  if (name == "float16") return Dtype::f16;
  if (name == "float64") return Dtype::f64;
  fields.refuse(v5 ? "dtype" : "torch_dtype", "expected float32, bfloat16, float16 or float64");
}

void read_token_ids(Fields& fields, HfConfig& config) {
  const auto one = [&](const std::string& key) -> std::optional<int64_t> {
    if (fields.find(key) == nullptr) return std::nullopt;
    return fields.integer(key, std::nullopt, -1);  // -1 is the older LLaMA notation for "none"
  };
  config.bos_token_id = one("bos_token_id");
  config.pad_token_id = one("pad_token_id");
  const Json* eos = fields.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    config.eos_token_ids = {*one("eos_token_id")};
    return;
  }
  for (const Json& id : *eos) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > static_cast<uint64_t>(kSizeLimit)) {
      fields.refuse("eos_token_id", "expected token ids");
    }
    config.eos_token_ids.push_back(id.get<int64_t>());
  }
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& source) {
  const Json object = parse_json(text, source);
  if (!object.is_object()) throw DataError(fmt::format("{}: expected a JSON object", source));
  Fields fields(object, source);
  refuse_unsupported(fields);
  HfConfig config;
  config.vocab_size = fields.integer("vocab_size", std::nullopt);
  config.hidden_size = fields.integer("hidden_size", std::nullopt);
  config.intermediate_size = fields.integer("intermediate_size", std::nullopt);
  config.num_hidden_layers = fields.integer("num_hidden_layers", std::nullopt);
  config.num_attention_heads = fields.integer("num_attention_heads", std::nullopt);
  config.num_key_value_heads = fields.integer("num_key_value_heads", config.num_attention_heads);
  if (fields.find("head_dim") == nullptr && config.hidden_size % config.num_attention_heads != 0) {
    fields.refuse("hidden_size",
                  fmt::format("must be a multiple of num_attention_heads = {}", config.num_attention_heads));
  }
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.refuse("num_key_value_heads",
                  fmt::format("must divide num_attention_heads = {}", config.num_attention_heads));
  }
  config.head_dim = fields.integer("head_dim", config.hidden_size / config.num_attention_heads);
  if (config.head_dim % 2 != 0 || config.head_dim == 0)
    fields.refuse("head_dim", "rotary positions require an even number");
  config.max_position_embeddings = fields.integer("max_position_embeddings", config.max_position_embeddings);
  config.rms_norm_eps = fields.positive("rms_norm_eps", config.rms_norm_eps);
  config.initializer_range = fields.positive("initializer_range", config.initializer_range);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  config.attention_bias = fields.boolean("attention_bias", false);
  config.mlp_bias = fields.boolean("mlp_bias", false);
  config.final_logit_softcapping = fields.not_negative("final_logit_softcapping", 0.0);
  config.is_causal = fields.boolean("is_causal", true);
  config.sliding_window = read_sliding_window(fields);
  config.linformer_length = fields.integer("linformer_length", 0, 0);
  config.linformer_tokens = fields.integer("linformer_tokens", 0, 0);
  read_all_rope(fields, config, source);
  read_token_ids(fields, config);
  config.torch_dtype = read_dtype(fields);
  fields.find("architectures");
  config.other_keys = fields.rest().dump();
  return config;
}

HfConfig read_hf_config(const std::string& path) {
  std::filesystem::path file(path);
  if (explained([&] { return std::filesystem::is_directory(file); })) file /= "config.json";
  return parse_hf_config(read_file(file), file);
}

}  // namespace orthant

// Hugging Face config.json: read and written for the versions 4 and 5 of transformers. Configurations that we cannot
// run are refused with file and key.
#include "config/hf_config.h"
#include "config/hf_family.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::hf_config_test {
namespace {

using Json = nlohmann::ordered_json;

Json small() {
  return {{"model_type", "llama"},  {"vocab_size", 100},        {"hidden_size", 64},        {"intermediate_size", 128},
          {"num_hidden_layers", 2}, {"num_attention_heads", 8}, {"num_key_value_heads", 4}, {"rms_norm_eps", 1e-5}};
}

Json llama3() {
  return {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

HfConfig parse(const Json& object) { return parse_hf_config(object.dump(), "config.json"); }
std::string refusal(const Json& object) {
  return message_of<DataError>([&] { parse(object); });
}

// A file names its family, whatever the model was called before.
HfConfig of_family(HfConfig config, const char* model_type) {
  config.model.architecture = model_type;
  return config;
}

// The Llama of transformers ignores sliding_window. Therefore a model with a window is written as a Mistral.
TEST(HfConfig, AWindowMakesAMistral) {
  HfConfig config;
  config.model.sliding_window = 64;
  const Json written = Json::parse(config_json(config));
  EXPECT_EQ(written["model_type"], "mistral");
  EXPECT_EQ(written["architectures"], Json::array({"MistralForCausalLM"}));
  EXPECT_EQ(parse(written), of_family(config, "mistral"));
  Json object = small();
  object["model_type"] = "mistral";
  EXPECT_EQ(parse(object).model.sliding_window, 4096);  // the default of MistralConfig
  object["sliding_window"] = nullptr;
  EXPECT_EQ(parse(object).model.sliding_window, 0);
  object["sliding_window"] = 7;
  EXPECT_EQ(parse(object).model.sliding_window, 7);
  config = {};
  config.model.linformer_length = 8;
  config.model.linformer_tokens = 32;
  EXPECT_EQ(parse_hf_config(config_json(config), "config.json"), of_family(config, "orthant"));
}

// The Llama of transformers ignores final_logit_softcapping. Therefore such a model is written with a model_type that
// transformers does not know.
TEST(HfConfig, LogitSoftcappingHasItsOwnModelType) {
  HfConfig config;
  config.model.final_logit_softcapping = 30.5;
  const Json written = Json::parse(config_json(config));
  EXPECT_EQ(written["final_logit_softcapping"], 30.5);
  EXPECT_EQ(written["model_type"], "orthant");
  EXPECT_EQ(written["architectures"], Json::array({"OrthantForCausalLM"}));
  EXPECT_EQ(parse(written), of_family(config, "orthant"));
  EXPECT_FALSE(Json::parse(config_json(HfConfig{})).contains("final_logit_softcapping"));
  Json object = small();
  for (const Json& none : {Json(nullptr), Json(0)}) {
    object["final_logit_softcapping"] = none;
    EXPECT_EQ(parse(object).model.final_logit_softcapping, 0);
  }
  for (const Json& bad : {Json(-1), Json("30"), Json(true)}) {
    object["final_logit_softcapping"] = bad;
    EXPECT_NE(refusal(object).find("final_logit_softcapping"), std::string::npos);
  }
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    Json llama = small();
    llama[key] = 30;
    EXPECT_NE(refusal(llama).find("transformers ignores it in a \"llama\""), std::string::npos);
  }
}

// A block of another family is written with that family's model_type, class and keys. A block of no family gets a type
// that no loader of transformers knows.
TEST(HfConfig, TheBlockDecidesTheFamily) {
  HfConfig qwen, qwen2, starcoder, own;
  qwen2.model.qkv_bias = true;
  qwen.model.qk_norm = true;
  starcoder.model.norm = "layer_norm";
  starcoder.model.mlp = "gelu_tanh";
  starcoder.model.attention_bias = starcoder.model.mlp_bias = true;
  starcoder.model.rms_norm_eps = 3e-6;
  own.model.qk_norm = true;
  own.model.mlp = "gelu";
  own.model.mlp_bias = own.model.qkv_bias = true;
  const auto written = [](const HfConfig& config) { return parse_json(config_json(config), "config.json"); };
  EXPECT_EQ(written(qwen)["model_type"], "qwen3");
  EXPECT_EQ(written(qwen)["architectures"], Json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(written(qwen)["use_sliding_window"], false);
  EXPECT_EQ(written(qwen2)["model_type"], "qwen2");
  EXPECT_EQ(written(starcoder)["architectures"], Json::array({"Starcoder2ForCausalLM"}));
  EXPECT_EQ(written(starcoder)["norm_epsilon"], 3e-6);
  EXPECT_EQ(written(starcoder)["use_bias"], true);
  EXPECT_EQ(written(starcoder)["hidden_act"], "gelu_pytorch_tanh");
  EXPECT_EQ(written(own)["model_type"], "orthant");
  EXPECT_EQ(parse(written(qwen)), of_family(qwen, "qwen3"));
  EXPECT_EQ(parse(written(qwen2)), of_family(qwen2, "qwen2"));
  EXPECT_EQ(parse(written(starcoder)), of_family(starcoder, "starcoder2"));
  EXPECT_EQ(parse(written(own)), of_family(own, "orthant"));
  EXPECT_EQ(written(of_family({}, "mistral"))["model_type"], "mistral");  // its class also has models without windows
  EXPECT_EQ(written(of_family(qwen, "mistral"))["model_type"], "qwen3");
  Json window = written(qwen);
  window["sliding_window"] = 4096;  // as in the files of Qwen3, whose switch is off
  EXPECT_EQ(parse(window), of_family(qwen, "qwen3"));
  window["use_sliding_window"] = true;
  expect_pieces(refusal(window), {"use_sliding_window = true", "expected false"});
}

TEST(HfConfig, ATextNamesTheFamilyAndItsOperations) {
  Architecture model{.hidden_size = 64, .num_hidden_layers = 2, .num_attention_heads = 4, .num_key_value_heads = 2};
  EXPECT_EQ(architecture_text(model), "llama, 2 layers, hidden 64, 4 heads (2 key-value)");
  model.norm = "layer_norm", model.mlp = "gelu", model.qk_norm = true;
  EXPECT_EQ(architecture_text(model),
            "orthant, 2 layers, hidden 64, 4 heads (2 key-value), layer_norm, gelu, norms of heads");
}

TEST(HfConfig, RoundTrips) {
  HfConfig config{.model = {.hidden_size = 96,
                            .intermediate_size = 200,
                            .num_hidden_layers = 3,
                            .num_attention_heads = 6,
                            .num_key_value_heads = 2,
                            .head_dim = 32,
                            .vocab_size = 257,
                            .max_position_embeddings = 777,
                            .rms_norm_eps = 3e-6,
                            .rope_theta = 500000.0,
                            .tie_word_embeddings = true,
                            .initializer_range = 0.0123456789},
                  .bos_token_id = 1,
                  .eos_token_ids = {2, 3},
                  .pad_token_id = 0,
                  .torch_dtype = "bfloat16"};
  Architecture& model = config.model;
  config.other_keys = R"({"use_cache":true,"transformers_version":"5.0.0"})";
  for (const char* type : {"none", "linear", "yarn", "llama3"}) {
    model.rope_scaling_type = type;
    const bool yarn = model.rope_scaling_type == "yarn";
    model.rope_scaling_beta_fast = yarn ? 20 : 32;
    model.rope_scaling_attention_factor = yarn ? 1.25 : 0;
    if (model.rope_scaling_type == "llama3") {
      model.rope_scaling_low_freq_factor = 1.5;
      model.rope_scaling_original_max_position_embeddings = 512;
    }
    EXPECT_EQ(parse_hf_config(config_json(config), "config.json"), config) << config_json(config);
  }
  config.bos_token_id = config.pad_token_id = std::nullopt;
  config.eos_token_ids.clear();
  for (const auto& [attention, mlp] : {std::pair{true, false}, {false, true}}) {
    model.attention_bias = attention;
    model.mlp_bias = mlp;
    const Json object = parse_json(config_json(config), "config.json");
    EXPECT_EQ(object["attention_bias"], attention);
    EXPECT_EQ(object["mlp_bias"], mlp);
    EXPECT_EQ(parse_hf_config(config_json(config), "config.json"), config);
  }
  EXPECT_EQ(parse_hf_config(config_json(config), "config.json"), config);
}

TEST(HfConfig, WritesBothSpellings) {
  HfConfig config{.eos_token_ids = {2}};
  config.model.rope_theta = 500000.0;
  config.model.rope_scaling_type = "llama3";
  const Json object = parse_json(config_json(config), "config.json");
  EXPECT_EQ(object["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(object["rope_theta"], 500000.0);
  EXPECT_EQ(object["rope_scaling"], llama3());
  Json with_theta = llama3();
  with_theta["rope_theta"] = 500000.0;
  EXPECT_EQ(object["rope_parameters"], with_theta);
  EXPECT_EQ(object["eos_token_id"], 2);
  EXPECT_TRUE(object.contains("bos_token_id") && object["bos_token_id"].is_null()) << "absent would mean 1";
  EXPECT_EQ(object["torch_dtype"], "float32");
  config.model.rope_scaling_type = "none";
  const Json plain = parse_json(config_json(config), "config.json");
  EXPECT_TRUE(plain["rope_scaling"].is_null());
  EXPECT_EQ(plain["rope_parameters"]["rope_type"], "default");
  EXPECT_EQ(parse_json(generation_config_json(config), "")["eos_token_id"], 2);
}

TEST(HfConfig, AModelOfMaskedTokensIsNotCalledACausalOne) {
  HfConfig config;
  config.model.objective = "masked";
  config.other_keys = R"({"mask_token_id":257})";
  const Json object = parse_json(config_json(config), "config.json");
  EXPECT_EQ(object["model_type"], "orthant");
  EXPECT_EQ(object["architectures"], Json::array({"OrthantForMaskedLM"}));
  EXPECT_EQ(object["is_causal"], false);
  EXPECT_EQ(object["mask_token_id"], 257);
  EXPECT_EQ(parse_hf_config(config_json(config), "config.json"), of_family(config, "orthant"));
  EXPECT_FALSE(parse_json(config_json(HfConfig()), "config.json").contains("is_causal"));
  EXPECT_TRUE(parse_hf_config(config_json(HfConfig()), "config.json").model.causal());
}

TEST(HfConfig, FillsInWhatTheFileLeavesOut) {
  Json object = small();
  object["num_key_value_heads"] = nullptr;
  const HfConfig config = parse(object);
  EXPECT_EQ(config.model.num_key_value_heads, 8);
  EXPECT_EQ(config.model.head_dim, 8);
  EXPECT_EQ(config.model.max_position_embeddings, 2048);
  EXPECT_EQ(config.model.rope_theta, 10000.0);
  EXPECT_EQ(config.model.rope_scaling_type, "none");
  EXPECT_EQ(config.torch_dtype, "float32");
  EXPECT_FALSE(config.model.tie_word_embeddings);
}

// The defaults of MistralConfig, Qwen2Config, Qwen3Config and Starcoder2Config of transformers 5.
TEST(HfConfig, AFamilyHasItsOwnDefaults) {
  const auto read = [](const char* family, const Json& key_heads = {}, const Json& head_dim = {}) {
    Json object = small();
    object["model_type"] = family;
    object["hidden_size"] = 256, object["num_attention_heads"] = 64;
    for (const char* key : {"num_key_value_heads", "rms_norm_eps"}) object.erase(key);
    if (key_heads != "absent") object["num_key_value_heads"] = key_heads;
    if (head_dim != "absent") object["head_dim"] = head_dim;
    return parse(object).model;
  };
  const Architecture mistral = read("mistral", "absent", "absent"), qwen = read("qwen3", "absent", "absent"),
                     starcoder = read("starcoder2", "absent", "absent");
  EXPECT_EQ(mistral.num_key_value_heads, 8);
  EXPECT_EQ(mistral.head_dim, 4);
  EXPECT_EQ(mistral.max_position_embeddings, 131072);
  const Architecture qwen2 = read("qwen2", "absent", "absent");
  EXPECT_EQ(std::tuple(qwen2.num_key_value_heads, qwen2.head_dim, qwen2.max_position_embeddings),
            std::tuple(32, 4, 32768));
  EXPECT_EQ(qwen.num_key_value_heads, 32);
  EXPECT_EQ(qwen.head_dim, 128);
  EXPECT_EQ(qwen.max_position_embeddings, 32768);
  EXPECT_EQ(starcoder.num_key_value_heads, 2);
  EXPECT_EQ(starcoder.max_position_embeddings, 4096);
  EXPECT_EQ(starcoder.rms_norm_eps, 1e-5);
  EXPECT_EQ(starcoder.initializer_range, 0.018042);
  EXPECT_TRUE(starcoder.tie_word_embeddings);
  EXPECT_EQ(read("qwen3", nullptr, nullptr).num_key_value_heads, 64);  // null: one for each query head
  EXPECT_EQ(read("qwen3", nullptr, nullptr).head_dim, 4);              // null: hidden_size / num_attention_heads
}

TEST(HfConfig, RefusesOperationsThatDoNotExist) {
  HfConfig own;
  own.model.qk_norm = true;
  own.model.mlp = "gelu";
  Json object = Json::parse(config_json(own));
  object["mlp"] = "geluu";
  expect_pieces(refusal(object), {"mlp = \"geluu\"", "must be swiglu, gelu or gelu_tanh"});
  object = small();
  object["model_type"] = "gpt_neox";
  expect_pieces(refusal(object),
                {"model_type = \"gpt_neox\"", "llama, mistral, qwen2, qwen3, phi3, starcoder2, gpt2 or orthant"});
  object = small();
  object["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}};
  expect_pieces(refusal(object), {"partial_rotary_factor = 0.5", "must be 1"});
  object = small();
  object["layer_types"] = {"full_attention", "sliding_attention"};
  expect_pieces(refusal(object), {"layer_types", "full_attention"});
}

TEST(HfConfig, ReadsRopeOfTransformers4And5) {
  Json v4 = small(), v5 = small(), old = small();
  v4["rope_theta"] = 5e5;
  v4["rope_scaling"] = llama3();
  v4["torch_dtype"] = "bfloat16";
  v5["rope_parameters"] = llama3();
  v5["rope_parameters"]["rope_theta"] = 5e5;
  v5["dtype"] = "bfloat16";
  EXPECT_EQ(parse(v4), parse(v5));
  EXPECT_EQ(parse(v4).model.rope_scaling_type, "llama3");
  EXPECT_EQ(parse(v4).model.rope_theta, 5e5);
  old["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(parse(old).model.rope_scaling_type, "linear");
  EXPECT_EQ(parse(old).model.rope_scaling_factor, 2.0);
  v4["rope_parameters"] = v5["rope_parameters"];
  EXPECT_EQ(parse(v4).model.rope_theta, 5e5);
  v4["rope_parameters"]["factor"] = 9.0;
  expect_pieces(refusal(v4), {"rope_parameters", "contradicts"});
  v5["rope_theta"] = 1e4;
  expect_pieces(refusal(v5), {"rope_parameters", "contradicts"});
}

TEST(HfConfig, KeepsKeysItDoesNotKnow) {
  Json object = small();
  object["use_cache"] = true;
  object["nested"] = {{"b", {1, 2}}, {"a", "x"}};
  const HfConfig config = parse(object);
  const Json again = parse_json(config_json(config), "");
  EXPECT_EQ(again["use_cache"], true);
  EXPECT_EQ(again["nested"].dump(), object["nested"].dump());
}

TEST(HfConfig, RefusesWhatWeCannotRun) {
  const auto with = [](const char* key, const Json& value) {
    Json object = small();
    object[key] = value;
    return object;
  };
  const auto check = [&](const char* key, const Json& value, std::initializer_list<std::string> pieces) {
    const std::string message = refusal(with(key, value));
    expect_pieces(message, {"config.json: ", key});
    expect_pieces(message, pieces);
  };
  check("model_type", "gemma2", {"\"gemma2\"", "must be llama"});
  check("model_type", nullptr, {"must be llama"});
  check("model_type", "qwen2_moe", {"\"qwen2_moe\"", "must be llama"});
  EXPECT_EQ(refusal(with("model_type", "gemma2")).find("experts"), std::string::npos);
  Json mixtral = with("model_type", "mixtral");
  mixtral["num_local_experts"] = 8;
  expect_pieces(refusal(mixtral), {"\"mixtral\"", "must be llama", "models with experts are not supported"});
  check("attention_bias", "no", {"expected true or false"});
  check("hidden_act", "gelu", {"silu"});
  check("quantization_config", {{"bits", 4}}, {"quantized"});
  check("attention_dropout", 0.1, {"expected 0"});
  check("sliding_window", 4096, {"expected 0, null"});
  check("partial_rotary_factor", 0.5, {"must be 1"});
  check("rope_scaling", {{"rope_type", "longrope"}, {"factor", 2.0}}, {"longrope", "default, linear, llama3 or yarn"});
  const auto refuses_in_yarn = [&](const std::string& key, const Json& value, const std::string& why) {
    check("rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}, {key, value}}, {key, why});
  };
  refuses_in_yarn("beta_fast", 1, "more than beta_slow");
  refuses_in_yarn("truncate", false, "must be true");
  check("rope_scaling", {{"rope_type", "linear"}}, {"factor", "(absent)", "above 0"});
  check("rope_scaling", {{"rope_type", "linear"}, {"factor", -1}}, {"factor = -1"});
  check("rope_scaling", 3, {"expected an object"});
  check("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}, {"full_attention", "per layer type"});
  check("torch_dtype", "int8", {"bfloat16"});
  Json high = llama3();
  high["high_freq_factor"] = 1.0;
  check("rope_scaling", high, {"high_freq_factor", "more than low_freq_factor"});
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    Json mistral = with(key, true);
    mistral["model_type"] = "mistral";
    expect_pieces(refusal(mistral), {"config.json: ", key, "a \"mistral\" has no such biases", "expected false"});
  }
  for (const char* key : {"attention_dropout", "sliding_window", "partial_rotary_factor"}) {
    EXPECT_NO_THROW(parse(with(key, nullptr))) << key;
  }
}

TEST(HfConfig, RefusesNumbersThatMakeNoModel) {
  const std::vector<std::pair<const char*, Json>> table{{"vocab_size", 0},
                                                        {"vocab_size", -3},
                                                        {"vocab_size", 1.5},
                                                        {"vocab_size", "100"},
                                                        {"vocab_size", nullptr},
                                                        {"hidden_size", 1ull << 40},
                                                        {"hidden_size", 65},
                                                        {"num_key_value_heads", 3},
                                                        {"num_hidden_layers", 0},
                                                        {"head_dim", 7},
                                                        {"rms_norm_eps", 0.0},
                                                        {"rms_norm_eps", "x"},
                                                        {"rope_theta", -1.0},
                                                        {"eos_token_id", {1, "x"}},
                                                        {"eos_token_id", "x"},
                                                        {"tie_word_embeddings", 1},
                                                        {"hidden_size", 18446744073709551615ull}};
  for (const auto& [key, value] : table) {
    Json object = small();
    object[key] = value;
    expect_pieces(refusal(object), {"config.json: ", key});
  }
  EXPECT_NO_THROW(parse(small()));
}

TEST(HfConfig, RefusesWhatIsNoConfig) {
  for (const char* text : {"", "[]", "{", "3", R"({"a":1,"a":2})"}) {
    EXPECT_THROW(parse_hf_config(text, "config.json"), DataError) << text;
  }
  TempFolder dir;
  expect_pieces(message_of<DataError>([&] { read_hf_config(dir.path()); }), {"config.json", "No such file"});
  spill(dir / "config.json", small().dump());
  EXPECT_EQ(read_hf_config(dir.path()), read_hf_config(dir / "config.json"));
}

}  // namespace
}  // namespace orthant::hf_config_test

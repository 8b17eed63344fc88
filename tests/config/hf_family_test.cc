// The files of GPT-2 and Phi-3, whose weights are stored in another form than Llama's. GPT-2's config.json also has
// keys of its own.
#include <nlohmann/json.hpp>

#include "config/from_config.h"
#include "config/hf_config.h"
#include "config/hf_family.h"
#include "config/hf_tensors.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::hf_family_test {
namespace {

using Json = nlohmann::ordered_json;

HfConfig parse(const Json& object) { return parse_hf_config(object.dump(), "config.json"); }
std::string refusal(const Json& object) {
  return message_of<DataError>([&] { parse(object); });
}

// The form of the files on the Hugging Face hub: only GPT-2's own keys.
Json hub() {
  return {{"model_type", "gpt2"}, {"n_embd", 48},      {"n_layer", 3},      {"n_head", 4},
          {"n_ctx", 96},          {"n_positions", 96}, {"vocab_size", 131}, {"resid_pdrop", 0.1}};
}

TEST(HfGpt2, HasItsOwnKeys) {
  const HfConfig config = parse(hub());
  const Architecture& model = config.model;
  EXPECT_EQ(model.intermediate_size, 4 * 48);
  EXPECT_EQ(model.num_key_value_heads, 4);
  EXPECT_EQ(model.head_dim, 12);
  EXPECT_EQ(model.max_position_embeddings, 96);
  EXPECT_EQ(model.positions + " " + model.norm + " " + model.mlp, "learned layer_norm gelu_tanh");
  EXPECT_TRUE(model.attention_bias && model.mlp_bias && model.tie_word_embeddings);
  EXPECT_EQ(model.rms_norm_eps, 1e-5);
  EXPECT_EQ(num_parameters(model), (131 + 96 + 3 * (12 * 48 + 13) + 2) * 48);
  const Json written = Json::parse(config_json(config));
  EXPECT_EQ(written["architectures"], Json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(written["n_inner"], 192);
  EXPECT_EQ(written["layer_norm_epsilon"], 1e-5);
  EXPECT_EQ(written["n_ctx"], 96);
  EXPECT_EQ(written["resid_pdrop"], 0.1);  // kept, although not read
  for (const char* not_in_gpt2 : {"hidden_size", "head_dim", "rope_theta", "rope_parameters", "mlp_bias"}) {
    EXPECT_FALSE(written.contains(not_in_gpt2)) << not_in_gpt2;
  }
  EXPECT_EQ(parse(written).model, model);
  const auto refused = [&](const char* key, const Json& value) {
    Json object = hub();
    object[key] = value;
    return refusal(object);
  };
  expect_pieces(refused("activation_function", "relu"), {"activation_function", "gelu_new"});
  expect_pieces(refused("scale_attn_by_inverse_layer_idx", true),
                {"scale_attn_by_inverse_layer_idx", "expected false"});
  expect_pieces(refused("scale_attn_weights", false), {"scale_attn_weights", "must be true"});
  expect_pieces(refused("n_head", 5), {"n_head = 5 must divide n_embd"});
  expect_pieces(refused("n_embd", nullptr), {"n_embd"});
}

// A model that GPT-2's class cannot express is written as another family.
TEST(HfGpt2, IsOnlyForModelsThatItsClassExpresses) {
  const Architecture gpt2 = parse(hub()).model;
  EXPECT_EQ(family_of(gpt2).model_type, "gpt2");
  std::vector<Architecture> others(5, gpt2);
  others[0].num_key_value_heads = 2;
  others[1].head_dim = 16;
  others[2].mlp_bias = false;
  others[3].norm = "rms_norm";
  others[4].sliding_window = 8;
  for (const Architecture& other : others) EXPECT_EQ(family_of(other).model_type, "orthant");
}

// Query, key and value of GPT-2 are parts of one tensor, whose dims are exchanged.
TEST(HfGpt2, StoresWeightsInItsOwnForm) {
  const Architecture model = parse(hub()).model;
  const std::vector<ParameterInfo> parameters = parameter_table(model);
  std::map<std::string, HfTensor> tensors;
  for (const HfTensor& tensor : hf_tensors(*find_family("gpt2"), parameters)) tensors[tensor.name] = tensor;
  EXPECT_EQ(tensors.size(), 2u + 3 * 12 + 2);
  const HfTensor& joint = tensors.at("transformer.h.1.attn.c_attn.weight");
  EXPECT_EQ(joint.other_name, "h.1.attn.c_attn.weight");
  EXPECT_EQ(joint.shape, (std::vector<int64_t>{48, 144}));
  EXPECT_TRUE(joint.transposed);
  std::vector<std::string> parts;
  for (const size_t p : joint.parameters) parts.push_back(parameters[p].name);
  const std::string attention = "model.layers.1.self_attn.";
  EXPECT_EQ(parts, (std::vector<std::string>{attention + "q_proj.weight", attention + "k_proj.weight",
                                             attention + "v_proj.weight"}));
  EXPECT_EQ(tensors.at("transformer.h.1.attn.c_attn.bias").shape, std::vector<int64_t>{144});
  EXPECT_EQ(tensors.at("transformer.h.0.mlp.c_proj.weight").shape, (std::vector<int64_t>{192, 48}));
  EXPECT_FALSE(tensors.at("transformer.wpe.weight").transposed);
  EXPECT_TRUE(tensors.contains("transformer.ln_f.bias"));
  EXPECT_EQ(hf_tensors(*find_family("llama"), parameters).front().name, "model.embed_tokens.weight");
}

TEST(HfGpt2, MayHaveHeadsOfAnOddNumberOfElements) {
  Json object = hub();
  object["n_embd"] = 36;
  EXPECT_EQ(parse(object).model.head_dim, 9);
  object["n_head"] = 72;
  expect_pieces(refusal(object), {"n_head = 72 must divide n_embd"});
}

// In a run file, the family's name stands for its blocks.
TEST(HfGpt2, TheNameOfAFamilyGivesItsBlocks) {
  const auto model_of = [](const std::vector<std::string>& overrides) {
    return make_architecture(parse_config("", "a.toml", overrides), 256);
  };
  const Architecture gpt2 = model_of({"model.architecture=gpt2"});
  EXPECT_EQ(gpt2.positions + " " + gpt2.norm + " " + gpt2.mlp, "learned layer_norm gelu_tanh");
  EXPECT_EQ(gpt2.num_key_value_heads, gpt2.num_attention_heads);
  EXPECT_TRUE(gpt2.attention_bias && gpt2.mlp_bias && gpt2.tie_word_embeddings);
  EXPECT_EQ(family_of(gpt2).model_type, "gpt2");
  const Architecture untied = model_of({"model.architecture=gpt2", "model.tie_word_embeddings=false"});
  EXPECT_FALSE(untied.tie_word_embeddings);
  EXPECT_EQ(untied.positions, "learned");
  EXPECT_TRUE(model_of({"model.architecture=qwen3"}).qk_norm);
  EXPECT_EQ(model_of({"model.architecture=llama"}), model_of({}));
}

// Phi-3 has Llama's operations, but stores query, key and value, and gate and up, as one tensor each. A model becomes a
// Phi-3 only if it is called that.
TEST(HfPhi3, IsKeptAsTheFamilyOfAFile) {
  Json object = {{"model_type", "phi3"},      {"vocab_size", 100},        {"hidden_size", 64},
                 {"intermediate_size", 128},  {"num_hidden_layers", 2},   {"num_attention_heads", 8},
                 {"num_key_value_heads", 4},  {"resid_pdrop", 0.1}};
  const HfConfig config = parse(object);
  EXPECT_EQ(config.model.architecture, "phi3");
  EXPECT_EQ(family_of(config.model).model_type, "phi3");
  const Json written = Json::parse(config_json(config));
  EXPECT_EQ(written["architectures"], Json::array({"Phi3ForCausalLM"}));
  EXPECT_EQ(written["resid_pdrop"], 0.1);  // kept, although not read
  EXPECT_EQ(parse(written).model, config.model);
  const std::vector<ParameterInfo> parameters = parameter_table(config.model);
  const std::vector<HfTensor> tensors = hf_tensors(family_of(config.model), parameters);
  const auto joint = std::ranges::find(tensors, "model.layers.0.mlp.gate_up_proj.weight", &HfTensor::name);
  ASSERT_NE(joint, tensors.end());
  EXPECT_EQ(joint->shape, (std::vector<int64_t>{2 * config.model.intermediate_size, config.model.hidden_size}));
  EXPECT_EQ(parameters[joint->parameters[1]].name, "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(std::ranges::count(tensors, "model.layers.0.self_attn.qkv_proj.weight", &HfTensor::name), 1);
  HfConfig other = config;
  other.model.architecture = "llama";
  EXPECT_EQ(family_of(other.model).model_type, "llama");
  object["attention_bias"] = true;
  expect_pieces(refusal(object), {"attention_bias = true", "phi3"});
}

}  // namespace
}  // namespace orthant::hf_family_test

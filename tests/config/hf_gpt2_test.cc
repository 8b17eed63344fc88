// The files of GPT-2: its config.json has keys of its own, and its weights are stored in another form than Llama's.
#include <nlohmann/json.hpp>

#include "config/hf_config.h"
#include "config/hf_family.h"
#include "config/hf_tensors.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant::hf_gpt2_test {
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
  EXPECT_EQ(written["resid_pdrop"], 0.0);  // training here has no dropout
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
  Architecture model = parse(hub()).model;
  std::map<std::string, HfTensor> places;
  for (const ParameterInfo& parameter : parameter_table(model)) places[parameter.name] = hf_tensor(model, parameter);
  const HfTensor& key = places.at("model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(key.name, "transformer.h.1.attn.c_attn.weight");
  EXPECT_EQ(key.other_name, "h.1.attn.c_attn.weight");
  EXPECT_EQ(key.shape, (std::vector<int64_t>{48, 144}));
  EXPECT_TRUE(key.transposed);
  EXPECT_EQ(key.first_row, 48);
  EXPECT_EQ(places.at("model.layers.1.self_attn.v_proj.bias").first_row, 96);
  EXPECT_EQ(places.at("model.layers.0.mlp.c_proj.weight").shape, (std::vector<int64_t>{192, 48}));
  EXPECT_EQ(places.at("model.embed_positions.weight").name, "transformer.wpe.weight");
  EXPECT_FALSE(places.at("model.embed_positions.weight").transposed);
  EXPECT_EQ(places.at("model.norm.bias").name, "transformer.ln_f.bias");
  model.mlp_bias = false;  // no longer GPT-2
  EXPECT_EQ(hf_tensor(model, parameter_table(model).front()).name, "model.embed_tokens.weight");
}

}  // namespace
}  // namespace orthant::hf_gpt2_test

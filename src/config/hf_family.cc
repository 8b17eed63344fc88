#include "config/hf_family.h"

#include <algorithm>

namespace orthant {
namespace {

constexpr HfFamily kFamilies[] = {
    {.model_type = "llama", .class_prefix = "Llama"},
    {.model_type = "mistral",
     .class_prefix = "Mistral",
     .window = true,
     .attention_bias = false,
     .mlp_bias = false,
     .default_window = 4096},
    {.model_type = "qwen3",
     .class_prefix = "Qwen3",
     .qk_norm = true,
     .mlp_bias = false,
     .window_switch = "use_sliding_window"},
    {.model_type = "starcoder2",
     .class_prefix = "Starcoder2",
     .norm = "layer_norm",
     .mlp = "gelu_tanh",
     .hidden_act = "gelu_pytorch_tanh",
     .window = true,
     .both_biases = "use_bias",
     .eps = "norm_epsilon",
     .tied_by_default = true},
    {.model_type = "orthant", .class_prefix = "Orthant", .norm = "", .mlp = "", .window = true},
};

bool expresses(const HfFamily& family, const Architecture& model) {
  if (family.norm.empty()) return true;
  return model.norm == family.norm && model.mlp == family.mlp && model.qk_norm == family.qk_norm &&
         (family.window || model.sliding_window == 0) && (family.attention_bias || !model.attention_bias) &&
         (family.mlp_bias || !model.mlp_bias) &&
         (family.both_biases.empty() || model.attention_bias == model.mlp_bias);
}

}  // namespace

const HfFamily* find_family(std::string_view model_type) {
  const auto found = std::ranges::find(kFamilies, model_type, &HfFamily::model_type);
  return found == std::end(kFamilies) ? nullptr : found;
}

const HfFamily& family_of(const Architecture& model) {
  return *std::ranges::find_if(kFamilies, [&](const HfFamily& family) { return expresses(family, model); });
}

}  // namespace orthant

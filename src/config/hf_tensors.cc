#include "config/hf_tensors.h"

#include <algorithm>
#include <string_view>

#include "base/errors.h"
#include "config/hf_family.h"

namespace orthant {
namespace {

struct Renaming {
  std::string_view ours, theirs;
};
constexpr Renaming kGpt2Modules[] = {
    {"model.embed_tokens", "wte"},        {"model.embed_positions", "wpe"},      {"model.norm", "ln_f"},
    {"input_layernorm", "ln_1"},          {"self_attn.q_proj", "attn.c_attn"},   {"self_attn.k_proj", "attn.c_attn"},
    {"self_attn.v_proj", "attn.c_attn"},  {"self_attn.o_proj", "attn.c_proj"},   {"post_attention_layernorm", "ln_2"},
    {"mlp.c_fc", "mlp.c_fc"},             {"mlp.c_proj", "mlp.c_proj"},
};

HfTensor gpt2_tensor(const Architecture& model, const ParameterInfo& parameter) {
  const std::string blocks = "model.layers.";
  std::string_view name = parameter.name;
  std::string block;  // "h.7."
  if (name.starts_with(blocks)) {
    name.remove_prefix(blocks.size());
    const size_t end = name.find('.') + 1;
    block = "h." + std::string(name.substr(0, end));
    name.remove_prefix(end);
  }
  const size_t dot = name.rfind('.');
  const std::string_view module = name.substr(0, dot), kind = name.substr(dot);
  const auto found = std::ranges::find(kGpt2Modules, module, &Renaming::ours);
  ORTHANT_CHECK(found != std::end(kGpt2Modules), parameter.name);
  HfTensor tensor{.shape = parameter.shape, .transposed = !block.empty() && parameter.is_matrix()};
  tensor.other_name = block + std::string(found->theirs) + std::string(kind);
  tensor.name = "transformer." + tensor.other_name;
  if (found->theirs == "attn.c_attn") {  // query, key and value have as many heads each
    tensor.shape[0] = 3 * model.hidden_size;
    tensor.first_row = (module == "self_attn.q_proj" ? 0 : module == "self_attn.k_proj" ? 1 : 2) * model.hidden_size;
  }
  if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
  return tensor;
}

}  // namespace

HfTensor hf_tensor(const Architecture& model, const ParameterInfo& parameter) {
  const bool is_head = parameter.name == "lm_head.weight";  // of GPT-2 too
  if (family_of(model).model_type == "gpt2" && !is_head) return gpt2_tensor(model, parameter);
  return {.name = parameter.name, .shape = parameter.shape};
}

}  // namespace orthant

#include "config/hf_tensors.h"

#include <algorithm>
#include <string_view>

#include "base/errors.h"

namespace orthant {
namespace {

// The tensor that stores this parameter alone; without its place in a list.
HfTensor lone_tensor(const HfStorage& storage, const ParameterInfo& parameter) {
  HfTensor tensor{.shape = parameter.shape};
  std::string_view module = parameter.name, kind = "";
  const size_t dot = module.rfind('.');
  if (dot != module.npos) kind = module.substr(dot), module = module.substr(0, dot);
  const std::string_view layers = "model.layers.";
  std::string layer;  // "h.7."
  if (module.starts_with(layers)) {
    const std::string_view numbered = module.substr(layers.size());
    module = numbered.substr(numbered.find('.') + 1);
    layer = std::string(storage.layers) + std::string(numbered.substr(0, numbered.size() - module.size()));
    tensor.transposed = storage.transposed && parameter.is_matrix();
  }
  const auto found = std::ranges::find(storage.modules, module, &HfModule::ours);
  if (found != storage.modules.end()) module = found->theirs;
  tensor.name = layer + std::string(module) + std::string(kind);
  const bool is_head = parameter.name == "lm_head.weight";
  if (!storage.prefix.empty() && !is_head) {
    tensor.other_name = tensor.name;
    tensor.name = std::string(storage.prefix) + tensor.other_name;
  }
  return tensor;
}

}  // namespace

std::vector<HfTensor> hf_tensors(const HfFamily& family, const std::vector<ParameterInfo>& parameters) {
  std::vector<HfTensor> tensors;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].copy_of.empty()) continue;
    HfTensor tensor = lone_tensor(family.storage, parameters[i]);
    if (tensors.empty() || tensors.back().name != tensor.name) {
      tensors.push_back(std::move(tensor));
    } else {
      tensors.back().shape[0] += tensor.shape[0];
    }
    tensors.back().parameters.push_back(i);
  }
  for (HfTensor& tensor : tensors) {
    if (tensor.transposed) std::swap(tensor.shape.front(), tensor.shape.back());
  }
  return tensors;
}

}  // namespace orthant

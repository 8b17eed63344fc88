// The table of optimizers.
#include "model/optimizer_plan.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {

int element_bytes(const StateTensor& tensor, int master_bytes) {
  switch (tensor.dtype) {
    case StateDtype::like_master: return master_bytes;
  }
  throw LogicError("a state tensor without a dtype: " + tensor.name);
}

std::vector<std::string> OptimizerSpec::state_names() const {
  std::vector<std::string> names;
  for (const StateTensor& tensor : state) names.push_back(tensor.name);
  return names;
}

std::vector<OptimizerSpec> optimizer_specs(const OptimizerConfig& config) {
  std::vector<StateTensor> momentum;
  if (config.momentum > 0) momentum = {{"momentum_buffer"}};
  return {{.name = "adamw",
           .torch_class = "AdamW",
           .settings = {"beta1", "beta2", "eps"},
           .state = {{"exp_avg"}, {"exp_avg_sq"}}},
          {.name = "sgd", .torch_class = "SGD", .settings = {"momentum"}, .state = momentum}};
}

OptimizerSpec optimizer_spec(const OptimizerConfig& config) {
  const auto specs = optimizer_specs(config);
  const auto found = std::ranges::find(specs, config.name, &OptimizerSpec::name);
  ORTHANT_CHECK(found != specs.end(), config.name);
  return *found;
}

int64_t state_bytes(const OptimizerConfig& config, int master_bytes) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : optimizer_spec(config).state) bytes += element_bytes(tensor, master_bytes);
  return bytes;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const OptimizerSpec& spec : optimizer_specs({})) names.push_back(spec.name);
  return names;
}

bool has_weight_decay(const OptimizerConfig& config, const ParameterInfo& parameter) {
  return config.weight_decay_on == "all" || parameter.is_matrix();
}

}  // namespace orthant

// The table of optimizers.
#include "model/optimizer_plan.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {

std::vector<OptimizerSpec> optimizer_specs(const OptimizerConfig& config) {
  std::vector<std::string> momentum;
  if (config.momentum > 0) momentum = {"momentum_buffer"};
  return {{.name = "adamw",
           .torch_class = "AdamW",
           .settings = {"beta1", "beta2", "eps"},
           .state = {"exp_avg", "exp_avg_sq"}},
          {.name = "sgd", .torch_class = "SGD", .settings = {"momentum"}, .state = momentum}};
}

OptimizerSpec optimizer_spec(const OptimizerConfig& config) {
  const auto specs = optimizer_specs(config);
  const auto found = std::ranges::find(specs, config.name, &OptimizerSpec::name);
  ORTHANT_CHECK(found != specs.end(), config.name);
  return *found;
}

int64_t state_bytes(const OptimizerConfig& config, int master_bytes) {
  return static_cast<int64_t>(optimizer_spec(config).state.size()) * master_bytes;
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

// The table of optimizers.
#include "model/optimizer_plan.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {

bool StateTensor::has(const ParameterInfo& parameter) const {
  switch (scope) {
    case StateScope::every_parameter: return true;
    case StateScope::hidden_matrices: return is_hidden_matrix(parameter);
    case StateScope::other_parameters: return !is_hidden_matrix(parameter);
  }
  throw LogicError("a state tensor without a scope: " + name);
}

bool is_hidden_matrix(const ParameterInfo& parameter) {
  return parameter.role == ParameterRole::from_stream || parameter.role == ParameterRole::to_stream;
}

std::vector<std::string> OptimizerSpec::state_names() const {
  std::vector<std::string> names;
  for (const StateTensor& tensor : state) names.push_back(tensor.name);
  return names;
}

namespace {

std::vector<OptimizerSpec> specs_with(const std::vector<StateTensor>& momentum) {
  return {{.name = "adamw",
           .torch_class = "AdamW",
           .settings = {"beta1", "beta2", "eps"},
           .state = {{"exp_avg"}, {"exp_avg_sq"}}},
          {.name = "sgd", .torch_class = "SGD", .settings = {"momentum"}, .state = momentum},
          {.name = "muon",
           .torch_class = "Muon",
           .settings = {"beta1", "beta2", "eps", "momentum"},
           .state = {{"momentum_buffer", StateScope::hidden_matrices},
                     {"exp_avg", StateScope::other_parameters},
                     {"exp_avg_sq", StateScope::other_parameters}}}};
}

}  // namespace

const std::vector<OptimizerSpec>& optimizer_specs(const OptimizerConfig& config) {
  static const std::vector<OptimizerSpec> with_momentum = specs_with({{"momentum_buffer"}}), without = specs_with({});
  return config.momentum > 0 ? with_momentum : without;
}

const OptimizerSpec& optimizer_spec(const OptimizerConfig& config) {
  const auto& specs = optimizer_specs(config);
  const auto found = std::ranges::find(specs, config.name, &OptimizerSpec::name);
  ORTHANT_CHECK(found != specs.end(), config.name);
  return *found;
}

int64_t state_bytes(const OptimizerConfig& config, const ParameterInfo& parameter, int master_bytes) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : optimizer_spec(config).state) bytes += tensor.has(parameter) ? master_bytes : 0;
  return bytes;
}

bool is_updated_as_matrix(const OptimizerConfig& config, const ParameterInfo& parameter) {
  return config.name == "muon" && is_hidden_matrix(parameter);
}

int64_t update_elements(const OptimizerConfig& config, const ParameterInfo& parameter) {
  if (!is_updated_as_matrix(config, parameter)) return 0;
  const int64_t smaller = std::min(parameter.shape[0], parameter.shape[1]);
  return 2 * parameter.size() + 2 * smaller * smaller;  // X before and after an iteration, A, and the polynomial of A
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

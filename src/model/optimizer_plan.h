// The optimizers without torch: their settings, and the state that each keeps for every parameter. Planning,
// checkpoints, verify and the optimizer itself read the same table.
#pragma once

#include <string>
#include <vector>

#include "model/architecture.h"

namespace orthant {

/// The settings of an optimizer: the section [optimizer] of the run file.
struct OptimizerConfig {
  std::string name = "adamw";
  double lr = 3e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.9;
  double weight_decay = 0.1;
  std::string weight_decay_on = "matrices";  // or "all" parameters
  bool in_backward = false;  // updates a unit's parameters as soon as backward has their gradients
  bool offload = false;      // keeps state in host memory
};

/// The parameters that have a state tensor. Hidden matrices are the projections of attention and of the MLP, without
/// those of Linformer.
enum class StateScope { every_parameter, hidden_matrices, other_parameters };

/// A state tensor that the optimizer keeps for each parameter in its scope, with the parameter's shape and sharding and
/// the dtype of its master weights. It is zero before the first step.
struct StateTensor {
  std::string name;  // in a checkpoint "exp_avg" stands for one tensor exp_avg.PARAMETER for each parameter
  StateScope scope = StateScope::every_parameter;

  bool has(const ParameterInfo& parameter) const;
};
bool is_hidden_matrix(const ParameterInfo& parameter);

/// One optimizer: its names, the settings that it reads, and its state.
struct OptimizerSpec {
  std::string name;         // in the run file
  std::string torch_class;  // in torch.optim; the name under which TensorBoard's files describe the run
  std::vector<std::string> settings;  // keys of [optimizer] that not every optimizer reads
  std::vector<StateTensor> state;

  std::vector<std::string> state_names() const;
};

/// All optimizers, each with the state that it keeps under these settings.
const std::vector<OptimizerSpec>& optimizer_specs(const OptimizerConfig& config);
/// The optimizer that the settings name.
const OptimizerSpec& optimizer_spec(const OptimizerConfig& config);
/// Bytes of all state tensors for one element of the parameter, whose master weight takes `master_bytes`.
int64_t state_bytes(const OptimizerConfig& config, const ParameterInfo& parameter, int master_bytes);
/// True if the update of each element reads the gradients of all elements. ZeRO then does not divide the parameter: one
/// rank, or one rank for each of its shards on a tensor mesh, owns it.
bool is_updated_as_matrix(const OptimizerConfig& config, const ParameterInfo& parameter);
/// Matrices whose updates the ranks of a tensor mesh compute at the same time, as indices of parameters.
using MatrixRound = std::vector<size_t>;
/// Elements of the temporary tensors of one parameter's update: those of Muon's iterations; 0 for elementwise updates.
int64_t update_elements(const OptimizerConfig& config, const ParameterInfo& parameter);
/// The optimizers' names in the run file.
std::vector<std::string> optimizer_names();

/// Whether the parameter has weight decay under weight_decay_on. Norm gains and biases are not matrices.
bool has_weight_decay(const OptimizerConfig& config, const ParameterInfo& parameter);

}  // namespace orthant

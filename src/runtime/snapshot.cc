// Loads the tensors of a Session: each rank copies its shards from the mapped files.
#include "runtime/snapshot.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/errors.h"
#include "checkpoint/hf_directory.h"
#include "runtime/hf_files.h"
#include "runtime/resume_check.h"
#include "runtime/tensor_files.h"

namespace orthant {
namespace {

// The stored tensor as a view into the mapped file.
at::Tensor stored(const TensorSet& set, const std::string& name, const std::string& directory) {
  return tensor_of_file(set.tensor(name), directory);
}

const std::string kMasterPrefix = "master.";

// The tensors of a checkpoint that hold masters, or one state tensor of the optimizer, of all parameters in its scope.
struct StoredTensors {
  std::string prefix;             // of the tensors' names
  const StateTensor* state = {};  // null: every parameter has one
  bool has(const ParameterInfo& parameter) const { return state == nullptr || state->has(parameter); }
};

std::vector<ExpectedTensor> wanted(const Weights& weights, const StoredTensors& tensors) {
  std::vector<ExpectedTensor> want;
  for (const auto& p : weights.parameters()) {
    if (p.copy_of.empty() && tensors.has(p)) want.push_back({tensors.prefix + p.name, p.shape});
  }
  return want;
}

bool keeps_masters(const Weights& weights) { return weights.working_dtype() != weights.masters().scalar_type(); }

// The tensors of the optimizer files.
std::vector<StoredTensors> optimizer_tensors(Session& session) {
  std::vector<StoredTensors> stored;
  for (const Optimizer::State& state : session.optimizer().state()) stored.push_back({state.name + ".", &state});
  if (keeps_masters(session.weights())) stored.push_back({kMasterPrefix, nullptr});
  return stored;
}

}  // namespace

void load_weights(const std::string& directory, Weights& weights) {
  const std::vector<ParameterInfo>& parameters = weights.parameters();
  const TensorSet set = open_hf_weights(directory);
  const HfFiles files(set, directory, *find_family(read_hf_config(directory).model.architecture), parameters);
  files.check_model();
  std::map<size_t, at::Tensor> shards;
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!weights.keeps(p)) continue;
    const at::Tensor shard = shard_of(parameters[p], files.parameter(p));
    if (!at::isfinite(shard).all().item<bool>()) {
      throw DataError(fmt::format("{}: {} has values that are not finite; use an earlier checkpoint or another copy",
                                  directory, parameters[p].name));
    }
    shards.emplace(p, shard);
  }
  for (const auto& [p, shard] : shards) weights.set(p, shard);
}

void load_first_weights(const Plan& plan, Weights& weights) {
  const Config& config = plan.config;
  if (!config.model.from.empty() && !config.training.seed_weights) {
    load_weights(config.model.from, weights);
  } else {
    weights.initialize(static_cast<uint64_t>(config.training.seed));
  }
}

TrainState load_snapshot(const std::string& directory, const Plan& plan, const TrainingData& data, Session& session,
                         ChecksummedFiles checksummed) {
  const LoadedCheckpoint checkpoint = open_checkpoint(directory, checksummed);
  Weights& weights = session.weights();
  const TrainState state = load_train_state(checkpoint, plan, data);
  std::vector<ExpectedTensor> want;
  for (const StoredTensors& stored : optimizer_tensors(session)) {
    std::ranges::move(wanted(weights, stored), std::back_inserter(want));
  }
  const HfFiles files(checkpoint.weights, directory, *find_family(checkpoint.hf_config.model.architecture),
                      weights.parameters());
  files.check();
  check_tensors(checkpoint.optimizer, want, directory + "/orthant");

  // All tensors of which the rank keeps elements are looked up, and may be refused, before the first is copied. Looking
  // up opens their files, and no others.
  const auto optimizer_shard = [&](const std::string& prefix, const ParameterInfo& parameter) {
    return shard_of(parameter, stored(checkpoint.optimizer, prefix + parameter.global_name(), directory));
  };
  std::map<size_t, at::Tensor> masters;  // by parameter
  struct StoredState {
    const Optimizer::State& tensor;
    size_t parameter;
    at::Tensor shard;
  };
  std::vector<StoredState> states;
  for (size_t i = 0; i < weights.parameters().size(); ++i) {
    const ParameterInfo& parameter = weights.parameters()[i];
    if (!weights.keeps(i)) continue;
    const auto value_shard = [&] { return shard_of(parameter, files.parameter(i)); };
    masters.emplace(i, keeps_masters(weights) ? optimizer_shard(kMasterPrefix, parameter) : value_shard());
    for (const Optimizer::State& tensor : session.optimizer().state()) {
      if (!tensor.has(parameter) || weights.owned().part(i).count == 0) continue;
      states.push_back({tensor, i, optimizer_shard(tensor.name + ".", parameter)});
    }
  }
  for (const auto& [parameter, shard] : masters) weights.set(parameter, shard);
  for (const auto& [tensor, parameter, shard] : states) {
    tensor.part(parameter).copy_(weights.owned_part_of_shard(shard, parameter));
  }
  if (state.norm) session.set_last_norm(*state.norm);
  session.set_skipped_steps(state.skipped_steps);
  return state;
}

}  // namespace orthant

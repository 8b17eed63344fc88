// Saves and loads the tensors of a Session. Saving gathers one tensor at a time on rank 0; loading copies each rank's
// shards from the mapped files.
#include "runtime/snapshot.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/hf_directory.h"
#include "checkpoint/retention.h"
#include "data/chat_template.h"
#include "runtime/hf_files.h"
#include "runtime/resume_check.h"
#include "runtime/tensor_files.h"

namespace orthant {
namespace {

using Json = nlohmann::ordered_json;

// The stored tensor as a view into the mapped file.
at::Tensor stored(const TensorSet& set, const std::string& name, const std::string& directory) {
  return tensor_of_file(set.tensor(name), directory);
}

const std::string kMasterPrefix = "master.";

// One tensor of a checkpoint for each parameter, or for each in the scope of a state tensor of the optimizer.
struct StoredTensors {
  std::string prefix = "";        // of the tensors' names
  const StateTensor* state = {};  // null: every parameter has one
  at::ScalarType dtype = at::kFloat;
  std::function<at::Tensor(size_t parameter)> shard = {};  // this rank's; all ranks must call it together

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

// The tensors of the optimizer file.
std::vector<StoredTensors> optimizer_tensors(Session& session) {
  const Weights& weights = session.weights();
  const at::ScalarType dtype = weights.masters().scalar_type();
  std::vector<StoredTensors> stored;
  for (const Optimizer::State& state : session.optimizer().state()) {
    stored.push_back({state.name + ".", &state, dtype,
                      [&](size_t p) { return session.shard_from_owned(state.part(p), p); }});
  }
  if (keeps_masters(weights)) {
    stored.push_back({kMasterPrefix, nullptr, dtype,
                      [&](size_t p) { return session.shard_from_owned(weights.owned_master(p), p); }});
  }
  return stored;
}

// Gathers tensors of all ranks into rank 0's files, one at a time. Only rank 0's file writer determines
// their order. Rank 0 therefore broadcasts the number of each tensor, and the other ranks serve it until there is none.
class Collection {
 public:
  explicit Collection(Session& session) : session_(session), stored_(optimizer_tensors(session)) {
    stored_.insert(stored_.begin(), {.dtype = session.weights().working_dtype(),
                                     .shard = [&session](size_t p) { return session.value_shard(p); }});
  }

  /// On rank 0: the tensors of a Hugging Face directory, each gathered when it is written.
  std::vector<TensorBytes> files(const HfFamily& family) {
    std::vector<TensorBytes> tensors;
    for (HfTensor& tensor : hf_tensors(family, session_.weights().parameters())) {
      tensors.push_back({.name = tensor.name,
                         .dtype = dtype_of(stored_.front().dtype),
                         .shape = tensor.shape,
                         .make = [this, parameters = tensor.parameters, transposed = tensor.transposed] {
                           whole_.reset();
                           std::vector<at::Tensor> parts;
                           for (const size_t p : parameters) {
                             parts.push_back(gathered(session_.broadcast_from_main(static_cast<int64_t>(p))));
                           }
                           whole_ = parts.size() == 1 ? parts.front() : at::cat(parts);
                           if (transposed) whole_ = whole_.t().contiguous();
                           return bytes_of(whole_);
                         }});
    }
    return tensors;
  }
  /// On rank 0: the tensors of one kind, each gathered when it is written.
  std::vector<TensorBytes> tensors(size_t kind) {
    const StoredTensors& stored = stored_[kind];
    std::vector<TensorBytes> tensors;
    const auto& parameters = session_.weights().parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].copy_of.empty() || !stored.has(parameters[i])) continue;
      tensors.push_back({.name = stored.prefix + parameters[i].name,
                         .dtype = dtype_of(stored.dtype),
                         .shape = parameters[i].shape,
                         .make = [this, number = static_cast<int64_t>(kind * parameters.size() + i)] {
                           whole_.reset();
                           whole_ = gathered(session_.broadcast_from_main(number));
                           return bytes_of(whole_);
                         }});
    }
    return tensors;
  }
  size_t kinds() const { return stored_.size(); }
  /// On other ranks: takes part in gathering until rank 0 calls end().
  void serve() {
    for (int64_t number; (number = session_.broadcast_from_main(kNoMore)) != kNoMore;) gathered(number);
  }
  void end() { session_.broadcast_from_main(kNoMore); }

 private:
  static constexpr int64_t kNoMore = -1;

  at::Tensor gathered(int64_t number) {
    const size_t count = session_.weights().parameters().size(), at = static_cast<size_t>(number);
    const at::Tensor whole = session_.gather(stored_[at / count].shard(at % count), at % count);
    return whole.defined() ? whole.cpu() : whole;
  }

  Session& session_;
  std::vector<StoredTensors> stored_;  // first the values
  at::Tensor whole_;
};

// The config.json of checkpoints. A model that continues another with its tokenizer keeps the other's token ids.
HfConfig hf_config_of(const Plan& plan, const TrainingData& data, at::ScalarType dtype) {
  HfConfig config{.model = plan.architecture};
  config.torch_dtype = dtype == at::kBFloat16 ? "bfloat16" : dtype == at::kDouble ? "float64" : "float32";
  if (data.model_from) {
    config.bos_token_id = data.model_from->bos_token_id;
    config.eos_token_ids = data.model_from->eos_token_ids;
    config.pad_token_id = data.model_from->pad_token_id;
    config.generation_config = data.model_from->generation_config;
  }
  if (config.eos_token_ids.empty() && data.tokenizer->end_of_text() >= 0) {
    config.eos_token_ids = {data.tokenizer->end_of_text()};
  }
  if (!config.model.causal()) {
    config.other_keys = Json{{"mask_token_id", mask_token(data.tokenizer->vocab_size())}}.dump();
  }
  return config;
}

}  // namespace

std::string save_snapshot(const Plan& plan, const TrainingData& data, Session& session, const TrainState& state) {
  const Weights& weights = session.weights();
  const std::string checkpoints = plan.config.job.dump_folder + "/checkpoints";
  Collection collection(session);
  if (!session.is_main_rank()) {
    collection.serve();
    return checkpoints + "/" + step_name(state.step);
  }
  CheckpointContent content;
  content.weights = collection.files(family_of(plan.architecture));
  for (size_t kind = 1; kind < collection.kinds(); ++kind) {
    std::ranges::move(collection.tensors(kind), std::back_inserter(content.optimizer));
  }
  content.hf_config = hf_config_of(plan, data, weights.working_dtype());
  const auto& config = plan.config;
  Json run = {{"step", state.step},
              {"next_sample", state.step * config.training.global_batch_size},
              {"tokens", state.tokens},
              {"seed", config.training.seed},
              {"global_batch_size", config.training.global_batch_size},
              {"seq_len", config.training.seq_len},
              {"mask_documents", config.data.mask_documents},
              {"masked_share", config.model.masked_share},
              {"dtype", config.training.dtype},
              {"data_xxh3", fmt::format("{:016x}", data.fingerprint)},
              {"text_xxh3", data.text_fingerprint ? fmt::format("{:016x}", *data.text_fingerprint) : ""},
              {"tokenizer_xxh3", fmt::format("{:016x}", data.tokenizer->fingerprint())},
              {"mesh", to_string(plan.mesh)}};
  if (session.last_norm()) run["gradient_norm"] = *session.last_norm();
  if (session.skipped_steps() > 0) run["skipped_steps"] = session.skipped_steps();
  content.state_json = run.dump(2) + "\n";
  content.config_toml = print_config(config);
  content.write_extra_files = [&](const std::string& directory) {
    data.tokenizer->save(directory);
    if (!data.chat_template.empty() && ChatTemplate::of_directory(directory).text() != data.chat_template) {
      write_file(directory + "/chat_template.jinja", data.chat_template);
    }
  };
  std::string saved =
      save_checkpoint(checkpoints, state.step, content, static_cast<int>(config.checkpoint.keep_latest_k));
  collection.end();
  return saved;
}

void load_weights(const std::string& directory, Weights& weights) {
  const std::vector<ParameterInfo>& parameters = weights.parameters();
  const TensorSet set = open_hf_weights(directory);
  const HfFiles files(set, directory, *find_family(read_hf_config(directory).model.architecture), parameters);
  files.check_model();
  std::vector<at::Tensor> shards;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const at::Tensor whole = files.parameter(p);
    if (!at::isfinite(whole).all().item<bool>()) {
      throw DataError(fmt::format("{}: {} has values that are not finite; use an earlier checkpoint or another copy",
                                  directory, parameters[p].name));
    }
    shards.push_back(shard_of(parameters[p], whole));
  }
  for (size_t p = 0; p < shards.size(); ++p) weights.set(p, shards[p]);
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
                       Verify verify) {
  const LoadedCheckpoint checkpoint = open_checkpoint(directory, verify);
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

  // All tensors are looked up, and may be refused, before the first is copied.
  const auto optimizer_shard = [&](const std::string& prefix, const ParameterInfo& parameter) {
    return shard_of(parameter, stored(checkpoint.optimizer, prefix + parameter.global_name(), directory));
  };
  std::vector<at::Tensor> masters;
  struct StoredState {
    const Optimizer::State& tensor;
    size_t parameter;
    at::Tensor shard;
  };
  std::vector<StoredState> states;
  for (size_t i = 0; i < weights.parameters().size(); ++i) {
    const ParameterInfo& parameter = weights.parameters()[i];
    const auto value_shard = [&] { return shard_of(parameter, files.parameter(i)); };
    masters.push_back(keeps_masters(weights) ? optimizer_shard(kMasterPrefix, parameter) : value_shard());
    for (const Optimizer::State& tensor : session.optimizer().state()) {
      if (!tensor.has(parameter)) continue;
      states.push_back({tensor, i, optimizer_shard(tensor.name + ".", parameter)});
    }
  }
  for (size_t i = 0; i < masters.size(); ++i) weights.set(i, masters[i]);
  for (const auto& [tensor, parameter, shard] : states) {
    tensor.part(parameter).copy_(weights.owned_part_of_shard(shard, parameter));
  }
  if (state.norm) session.set_last_norm(*state.norm);
  session.set_skipped_steps(state.skipped_steps);
  return state;
}

}  // namespace orthant

// Lists the tensors of both sides in the order of their names, and compares hashes, then elements.
#include "checkpoint/diff.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/tensor_hash.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// One of the two directories.
class SavedModel {
 public:
  SavedModel(const std::string& directory, bool weights_only) {
    if (fs::exists(fs::path(directory) / "orthant")) {
      LoadedCheckpoint loaded = open_checkpoint(directory, kNoFiles);
      manifest_ = read_manifest(loaded.directory);
      weights_ = std::move(loaded.weights);
      if (!weights_only) {
        optimizer_ = std::move(loaded.optimizer);
        state_ = parse_sorted_json(loaded.state_json, directory + "/orthant/state.json");
        settings_["orthant/config.toml"] = loaded.config_toml;
      }
    } else {
      weights_ = open_hf_weights(directory);
    }
    if (const fs::path config = fs::path(directory) / "config.json"; fs::exists(config)) {
      settings_["config.json"] = parse_sorted_json(read_file(config), config).dump();
    }
    for (const TensorSet* set : {&weights_, &optimizer_}) {
      for (const std::string& name : set->names()) {
        if (!sets_.emplace(name, set).second) {
          throw DataError(
              fmt::format("{}: tensor {} is a weight and a tensor of the optimizer", directory, printable(name)));
        }
      }
    }
  }
  SavedModel(const SavedModel&) = delete;
  SavedModel& operator=(const SavedModel&) = delete;

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, set] : sets_) names.push_back(name);
    return names;
  }
  const TensorEntry& entry(const std::string& name) const { return sets_.at(name)->entry(name); }
  TensorBytes tensor(const std::string& name) const { return sets_.at(name)->tensor(name); }
  bool states_hashes() const { return manifest_ && !manifest_->tensors.empty(); }
  const nlohmann::json& state() const { return state_; }
  const std::map<std::string, std::string>& settings() const { return settings_; }

  // The hash that the manifest states, else that of the bytes.
  uint64_t hash(const std::string& name) const {
    if (states_hashes()) return manifest_->tensors.at(name).xxh3;
    const std::span<const std::byte> bytes = tensor(name).bytes;
    const uint64_t xxh3 = tensor_xxh3(bytes);
    forget(bytes);
    return xxh3;
  }

 private:
  std::optional<Manifest> manifest_;
  TensorSet weights_, optimizer_;
  std::map<std::string, const TensorSet*> sets_;  // by tensor
  nlohmann::json state_;                          // null: there is none
  std::map<std::string, std::string> settings_;   // normalized texts, by file
};

void diff_tensors(const SavedModel& a, const SavedModel& b, int max_read, CheckpointDiff& diff) {
  const std::vector<std::string> names_a = a.names(), names_b = b.names();
  std::vector<std::string> both;
  std::set_difference(names_a.begin(), names_a.end(), names_b.begin(), names_b.end(), std::back_inserter(diff.only_a));
  std::set_difference(names_b.begin(), names_b.end(), names_a.begin(), names_a.end(), std::back_inserter(diff.only_b));
  std::set_intersection(names_a.begin(), names_a.end(), names_b.begin(), names_b.end(), std::back_inserter(both));
  diff.num_tensors = static_cast<int64_t>(both.size());
  for (const std::string& name : both) {
    const TensorEntry &entry_a = a.entry(name), &entry_b = b.entry(name);
    if (entry_a.dtype != entry_b.dtype || entry_a.shape != entry_b.shape) {
      diff.forms.push_back({name, entry_a.dtype, entry_b.dtype, entry_a.shape, entry_b.shape});
      continue;
    }
    if (a.hash(name) == b.hash(name)) continue;
    diff.tensors.push_back({name, entry_a.dtype, entry_a.shape, {}});
    if (static_cast<int>(diff.tensors.size()) > max_read) continue;
    const TensorBytes tensor_a = a.tensor(name), tensor_b = b.tensor(name);
    diff.tensors.back().elements = compare_elements(tensor_a.dtype, tensor_a.bytes, tensor_b.bytes);
    forget(tensor_a.bytes);
    forget(tensor_b.bytes);
  }
}

std::string field_text(const nlohmann::json& state, const std::string& field) {
  const auto found = state.find(field);
  return found == state.end() ? "none" : found->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void diff_states(const nlohmann::json& a, const nlohmann::json& b, CheckpointDiff& diff) {
  if (!a.is_object() || !b.is_object()) return;
  nlohmann::json fields = a;
  fields.update(b);
  fields.erase("mesh");
  for (const auto& [field, value] : fields.items()) {
    const std::string text_a = field_text(a, field), text_b = field_text(b, field);
    if (text_a != text_b) diff.state.push_back({field, text_a, text_b});
  }
}

}  // namespace

CheckpointDiff diff_checkpoints(const std::string& a, const std::string& b, const DiffOptions& options) {
  const SavedModel model_a(a, options.weights_only), model_b(b, options.weights_only);
  CheckpointDiff diff;
  diff.read_tensors = !model_a.states_hashes() || !model_b.states_hashes();
  diff_tensors(model_a, model_b, options.max_read, diff);
  diff_states(model_a.state(), model_b.state(), diff);
  for (const auto& [file, text] : model_a.settings()) {
    const auto other = model_b.settings().find(file);
    if (other != model_b.settings().end() && other->second != text) diff.settings.push_back(file);
  }
  return diff;
}

}  // namespace orthant

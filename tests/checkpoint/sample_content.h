// A small checkpoint whose bytes follow from a seed, and the names in a directory of checkpoints.
#pragma once

#include <algorithm>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/fixtures.h"
#include "tests/support/save_checkpoint.h"

namespace orthant {

struct Sample {
  Tensors weights, optimizer;
  CheckpointContent content;
  size_t weight_files = 1;

  explicit Sample(int64_t seed, int64_t rows = 6) {
    const auto base = static_cast<uint64_t>(seed) * 100;
    weights.add("model.embed_tokens.weight", Dtype::f32, {rows, 8}, base + 1);
    weights.add("model.norm.weight", Dtype::f32, {8}, base + 2);
    optimizer.add("exp_avg.model.embed_tokens.weight", Dtype::f32, {rows, 8}, base + 3);
    optimizer.add("exp_avg.model.norm.weight", Dtype::f32, {8}, base + 4);
    content.state_json = fmt::format(R"({{"step":{}}})", seed);
    content.config_toml = fmt::format("# run {}\n", seed);
    content.hf_config.model.vocab_size = rows;
  }

  /// Whether the loaded checkpoint equals this sample: tensors, state and config.
  bool holds(const LoadedCheckpoint& loaded) const {
    const auto all = [](const TensorSet& set, const Tensors& tensors) {
      return set.names().size() == tensors.views.size() &&
             std::all_of(tensors.views.begin(), tensors.views.end(), [&](const TensorBytes& tensor) {
               return set.contains(tensor.name) && set.tensor(tensor.name).shape == tensor.shape &&
                      same_bytes(set.bytes(tensor.name), tensor.bytes);
             });
    };
    return all(loaded.weights, weights) && all(loaded.optimizer, optimizer) &&
           loaded.state_json == content.state_json && loaded.config_toml == content.config_toml;
  }
};

inline std::string save_checkpoint(const std::string& checkpoints_dir, int64_t step, const Sample& sample,
                                   int keep_latest_k) {
  return save_checkpoint(checkpoints_dir, step, sample.content,
                         {sample.weights.views, sample.optimizer.views, sample.weight_files}, keep_latest_k);
}

/// The names in a directory, sorted.
inline std::vector<std::string> members(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace orthant

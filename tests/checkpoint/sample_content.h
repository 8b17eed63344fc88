// A small checkpoint whose bytes follow from a seed, and the names in a directory of checkpoints.
#pragma once

#include <algorithm>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/fixtures.h"

namespace orthant {

struct Sample {
  Tensors weights, optimizer;
  CheckpointContent content;

  explicit Sample(int64_t seed, int64_t rows = 6) {
    const auto base = static_cast<uint64_t>(seed) * 100;
    weights.add("model.embed_tokens.weight", Dtype::f32, {rows, 8}, base + 1);
    weights.add("model.norm.weight", Dtype::f32, {8}, base + 2);
    optimizer.add("exp_avg.model.embed_tokens.weight", Dtype::f32, {rows, 8}, base + 3);
    optimizer.add("exp_avg.model.norm.weight", Dtype::f32, {8}, base + 4);
    content.weights = weights.views;
    content.optimizer = optimizer.views;
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

/// The names in a directory, sorted.
inline std::vector<std::string> members(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace orthant

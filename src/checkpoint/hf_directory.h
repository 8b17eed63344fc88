// A Hugging Face model directory: config.json, generation_config.json, and the weights in one safetensors file or in
// several shards.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "config/hf_config.h"
#include "checkpoint/safetensors.h"

namespace orthant {

/// Default size of a shard, as in transformers 4.
inline constexpr int64_t kShardLimitBytes = 5'000'000'000;

/// Writes config.json, generation_config.json and the weights into an existing directory. The weights go into
/// model.safetensors if they fit `shard_limit_bytes`, else in the given order into model-00001-of-0000N.safetensors
/// with an index. Each file replaces an older one atomically. At the end, weight files of an older export are removed.
/// Returns the files by name. Throws as write_safetensors does.
std::map<std::string, WrittenFile> write_hf_directory(const std::string& directory, const HfConfig& config,
                                                      std::span<const TensorBytes> weights,
                                                      int64_t shard_limit_bytes = kShardLimitBytes);

/// Writes config.json and generation_config.json. Returns the files by name.
std::map<std::string, WrittenFile> write_hf_config(const std::string& directory, const HfConfig& config);

inline constexpr const char* kHfIndexFile = "model.safetensors.index.json";
/// Text of the index of several files of weights. `files`: by name.
std::string hf_index_json(const std::map<std::string, WrittenFile>& files);

/// Opens model.safetensors, or the files in model.safetensors.index.json. Throws DataError if neither exists, or if a
/// shard is missing, lies outside the directory, or holds other names than the index states.
TensorSet open_hf_weights(const std::string& directory);

/// A tensor of the model.
struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

/// Differences between the tensors of files and of a model; all lists are sorted by name.
struct TensorDifferences {
  std::vector<std::string> unexpected;
  std::vector<std::string> missing;
  std::vector<std::string> clashes;  // "NAME: shape [2, 3], expected [4, 3]"
  bool none() const { return unexpected.empty() && missing.empty() && clashes.empty(); }
};

/// Names in `optional` may be absent (lm_head.weight of a tied model). Constants that older files
/// store (rotary_emb.inv_freq of Llama, masks of GPT-2) are ignored.
TensorDifferences compare_tensors(const TensorSet& found, std::span<const ExpectedTensor> expected,
                                  std::span<const std::string> optional = {});
/// Throws DataError with all differences, if there are any. `source` is the directory.
void check_tensors(const TensorSet& found, std::span<const ExpectedTensor> expected, const std::string& source,
                   std::span<const std::string> optional = {});

}  // namespace orthant

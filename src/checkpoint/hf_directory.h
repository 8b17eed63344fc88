// A Hugging Face model directory: config.json, generation_config.json, and the weights in one safetensors file or in
// shards.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/hf_config.h"
#include "checkpoint/safetensors.h"

namespace orthant {

/// transformers 4 starts a new shard here.
inline constexpr int64_t kShardLimitBytes = 5'000'000'000;

/// Writes config.json, generation_config.json and the weights into an existing directory: model.safetensors where they
/// fit `shard_limit_bytes`, else model-00001-of-0000N.safetensors filled in the given order, and their index. Each file
/// replaces an older one atomically; weight files of an older export that are not part of this one are removed at the
/// end. Returns name -> digest of each file. Throws as write_safetensors.
std::map<std::string, FileDigest> write_hf_directory(const std::string& directory, const HfConfig& config,
                                                     std::span<const TensorBytes> weights,
                                                     int64_t shard_limit_bytes = kShardLimitBytes);

/// Opens model.safetensors, or what model.safetensors.index.json names. Throws DataError when neither is there, a shard
/// is missing, leads out of the directory, or holds other names than the index says.
TensorSet open_hf_weights(const std::string& directory);

/// A tensor that the model has. `reason` explains the shape in a message, as in "num_key_value_heads = 8".
struct WantedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string reason;
};

/// How files differ from what a model wants; all lists sorted by name.
struct TensorDifferences {
  std::vector<std::string> unexpected;
  std::vector<std::string> missing;
  std::vector<std::string> clashes;  // "NAME: have [2, 3], want [4, 3] because num_key_value_heads = 8"
  bool none() const { return unexpected.empty() && missing.empty() && clashes.empty(); }
};

/// Names in `optional` may be there or not (lm_head.weight of a tied model); rotary_emb.inv_freq of old files is
/// ignored.
TensorDifferences compare_tensors(const TensorSet& have, std::span<const WantedTensor> want,
                                  std::span<const std::string> optional = {});
/// Throws DataError with all differences, if there are any. `source` is the directory.
void check_tensors(const TensorSet& have, std::span<const WantedTensor> want, const std::string& source,
                   std::span<const std::string> optional = {});

}  // namespace orthant

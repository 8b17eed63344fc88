// Training checkpoints that survive a kill at any moment. DUMP/checkpoints/step-000100/ is a Hugging Face directory
// plus orthant/ (optimizer.safetensors, state.json, config.toml, manifest.json). A directory gets its final name only
// when it is complete; `latest` is a symbolic link to the newest. Tensors are found by global name in any number of
// files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/hf_config.h"
#include "checkpoint/hf_directory.h"
#include "checkpoint/safetensors.h"

namespace orthant {

/// Content to save. Spans, and the data that TensorBytes::make reads, must stay valid until save_checkpoint returns.
struct CheckpointContent {
  HfConfig hf_config;
  std::vector<TensorBytes> weights;
  std::vector<TensorBytes> optimizer;
  std::string state_json;   // one JSON object: step, next global sample, tokens seen, seed, data fingerprint, ...
  std::string config_toml;  // the effective run file
  /// Writes additional files into the checkpoint's directory (a tokenizer's). They are synced and enter the manifest.
  std::function<void(const std::string& directory)> write_extra_files;
  int64_t shard_limit_bytes = kShardLimitBytes;
};

/// Saves step-NNNNNN into `checkpoints_dir` (created if missing), sets `latest` to it, and replaces a checkpoint of the
/// same step. Then removes the oldest checkpoints beyond `keep_latest_k` (0 = keep all) and leftovers of earlier
/// crashes; a failed removal of an old checkpoint is ignored. On failure it throws (DataError for a system error),
/// removes its own temporary directory, and leaves every earlier checkpoint complete and `latest` valid. Only one
/// process at a time may save into a directory. Returns the new directory.
std::string save_checkpoint(const std::string& checkpoints_dir, int64_t step, const CheckpointContent& content,
                            int keep_latest_k);

/// sizes: every file exists with the size in the manifest. checksums: the XXH3 of its content is right too, which reads
/// every byte.
enum class Verify { sizes, checksums };

/// A checkpoint whose files have been checked. Tensors are views into mapped files.
struct LoadedCheckpoint {
  std::string directory;
  int64_t step = 0;
  HfConfig hf_config;
  TensorSet weights;
  TensorSet optimizer;
  std::string state_json;
  std::string config_toml;
};

/// Checks all files, then maps them. `directory` is step-NNNNNN or `latest`. Throws DataError with the damaged file,
/// the expected and the found content, and the newest complete checkpoint in the same folder. When several ranks open a
/// checkpoint, one should verify checksums and the others sizes.
LoadedCheckpoint open_checkpoint(const std::string& directory, Verify verify = Verify::checksums);

/// The checkpoint to resume from, or nullopt if there is none. It is the target of `latest` if that directory exists,
/// even damaged, because open_checkpoint() then reports the damage; else the newest complete checkpoint. Throws
/// DataError if there are checkpoints but none is complete.
std::optional<std::string> find_latest(const std::string& checkpoints_dir);

}  // namespace orthant

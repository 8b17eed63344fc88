// Training checkpoints that survive a kill at any moment: DUMP/checkpoints/step-000100/ is a Hugging Face directory
// plus orthant/ (optimizer.safetensors, state.json, config.toml, manifest.json). A directory has its final name only
// when whole; `latest` is a symbolic link to the newest. Tensors are found by global name, whichever file of however
// many holds them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hf_config.h"
#include "checkpoint/hf_directory.h"
#include "checkpoint/safetensors.h"

namespace orthant {

/// What is saved. Spans, and what tensors are made of, must stay valid until save_checkpoint returns.
struct CheckpointContent {
  HfConfig model;
  std::vector<TensorBytes> weights;
  std::vector<TensorBytes> optimizer;
  std::string state_json;   // one JSON object: step, next global sample, tokens seen, seed, data fingerprint, ...
  std::string config_toml;  // the effective run file
  /// Writes more files into the checkpoint's directory (a tokenizer's); they are synced and enter the manifest.
  std::function<void(const std::string& directory)> write_extra_files;
  int64_t shard_limit_bytes = kShardLimitBytes;
};

/// Saves step-NNNNNN into `checkpoints_dir` (made if missing), points `latest` at it, then removes the oldest
/// checkpoints beyond `keep_latest_k` (0 = keep all) and what an earlier crash left. An existing checkpoint of the same
/// step is replaced. On a failure throws (DataError for the system's), removes its own temporary, and leaves every
/// earlier checkpoint whole and `latest` leading to one. One process at a time may save into a directory. An old
/// checkpoint that cannot be removed does not fail the save. Returns the new directory.
std::string save_checkpoint(const std::string& checkpoints_dir, int64_t step, const CheckpointContent& content,
                            int keep_latest_k);

/// sizes: every file is there and as long as the manifest says. checksums: its XXH3 is right too (reads every byte).
enum class Verify { sizes, checksums };

/// A checkpoint whose files have been checked; tensors are views into mapped files.
struct LoadedCheckpoint {
  std::string directory;
  int64_t step = 0;
  HfConfig model;
  TensorSet weights;
  TensorSet optimizer;
  std::string state_json;
  std::string config_toml;
};

/// Checks all, then maps. `directory` is step-NNNNNN or `latest`. Throws DataError that names the file, what was
/// expected and found, and the newest whole checkpoint beside it. Of several ranks, one verifies checksums and the
/// others sizes.
LoadedCheckpoint open_checkpoint(const std::string& directory, Verify verify = Verify::checksums);

/// Where to resume: what `latest` names if that directory exists (damaged or not: open_checkpoint then says so); else
/// the newest whole checkpoint; nullopt when there is none at all. Throws DataError when there are some and none is
/// whole.
std::optional<std::string> find_latest(const std::string& checkpoints_dir);

}  // namespace orthant

// Training checkpoints that survive a kill at any moment. DUMP/checkpoints/step-000100/ is a Hugging Face directory
// plus orthant/ (optimizer, state.json, config.toml, manifest.json). Any number of processes write its files into a
// temporary directory, and one process completes it: a directory gets its final name only when it is complete. `latest`
// is a symbolic link to the newest. Tensors are found by global name in any number of files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "config/hf_config.h"

namespace orthant {

/// The content that the completing process adds to the files of tensors.
struct CheckpointContent {
  HfConfig hf_config;
  std::string state_json;   // one JSON object: step, next global sample, tokens seen, seed, data fingerprint, ...
  std::string config_toml;  // the effective run file
  /// Writes additional files into the checkpoint's directory (a tokenizer's). They are synced and enter the manifest.
  std::function<void(const std::string& directory)> write_extra_files = {};
};

/// The checkpoint of a step while it is written. Only one run at a time may save into a directory. Every failure throws
/// DataError or, for a bug, LogicError.
class NewCheckpoint {
 public:
  /// `checkpoints_dir` need not exist.
  NewCheckpoint(std::string checkpoints_dir, int64_t step);

  /// For one process, before all others: creates the temporary directory, and removes what earlier crashes left.
  void begin() const;
  /// Where the files are written: model*.safetensors and orthant/optimizer*.safetensors.
  const std::string& directory() const { return directory_; }
  /// The directory that it becomes: step-NNNNNN.
  std::string target() const;
  /// For the process that called begin(), once all files are written. `parts` state the files of each process, and the
  /// step that they belong to; another step is a LogicError. Adds the content, the index of the weights and the
  /// manifest, gives the directory its name, sets `latest`, and replaces a checkpoint of the same step. Then removes
  /// the oldest checkpoints beyond `keep_latest_k` (0 = all); a failure of that is ignored.
  void complete(const CheckpointContent& content, std::span<const Manifest> parts, int keep_latest_k) const;
  /// Removes the temporary directory, and ignores errors of that. Returns the error for a save that failed for this
  /// reason: unless the checkpoint has its name already, it also names the earlier one that remains.
  DataError abandon(const std::string& reason) const;

 private:
  std::string checkpoints_dir_;
  int64_t step_;
  std::string directory_;
};

/// An open checkpoint. Tensors are views into mapped files. An open file keeps its bytes, but no run may replace the
/// checkpoint before all files that are needed are open.
struct LoadedCheckpoint {
  std::string directory;
  int64_t step = 0;
  HfConfig hf_config;
  TensorSet weights;
  TensorSet optimizer;
  std::string state_json;
  std::string config_toml;
};

/// Reads the manifest and checks files as check_files() does. A file of tensors is opened when one of its tensors is
/// first used, so a process opens only those whose tensors it needs, and those that it checks. `directory` is
/// step-NNNNNN or `latest`. Throws DataError with the damaged file, the expected and the found content, and the newest
/// complete checkpoint in the same folder.
LoadedCheckpoint open_checkpoint(const std::string& directory, ChecksummedFiles checksummed = kAllFiles);

/// Checks all files of the checkpoint that `latest` names. If it is damaged, makes `latest` name the newest complete
/// one in the folder, and returns the error of the damaged file. Throws DataError if no checkpoint is complete, and
/// NewerFormat as parse_manifest() does.
std::optional<std::string> replace_damaged_latest(const std::string& checkpoints_dir);

/// The checkpoint to resume from, or nullopt if there is none. It is the target of `latest` if that directory exists,
/// even damaged, because open_checkpoint() then reports the damage; else the newest complete checkpoint. Throws
/// DataError if there are checkpoints but none is complete.
std::optional<std::string> find_latest(const std::string& checkpoints_dir);

}  // namespace orthant

// Saves and opens checkpoints. A save writes into a temporary directory, the manifest last, and renames it when it is
// complete; opening checks the manifest before it reads anything else.
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/errors.h"
#include "base/file_errors.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStateFile = "orthant/state.json";
constexpr const char* kConfigFile = "orthant/config.toml";
constexpr const char* kOptimizerFile = "orthant/optimizer.safetensors";

// Adds the files of `content.write_extra_files`: those in the directory that are not in the manifest yet.
void add_extra_files(const fs::path& directory, Manifest& manifest) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().lexically_relative(directory);
    if (entry.is_directory() && !entry.is_symlink()) continue;
    if (manifest.files.contains(name)) continue;
    if (!entry.is_regular_file() || entry.is_symlink()) {
      throw DataError(
          fmt::format("{}: not a regular file; a checkpoint must not contain links", entry.path().string()));
    }
    sync_file(entry.path());
    add_file(manifest, name, {digest_file(entry.path())});
  }
}

// Writes all files of a checkpoint, with the manifest last, and makes them durable, except for the directory's own
// name.
void write_content(const fs::path& directory, int64_t step, const CheckpointContent& content) {
  fs::create_directory(directory / "orthant");
  if (content.write_extra_files) content.write_extra_files(directory);
  Manifest manifest{.step = step, .files = {}, .tensors = {}};
  for (const auto& [name, file] :
       write_hf_directory(directory, content.hf_config, content.weights, content.shard_limit_bytes)) {
    add_file(manifest, name, file);
  }
  add_file(manifest, kOptimizerFile, write_safetensors(directory / kOptimizerFile, content.optimizer));
  add_file(manifest, kStateFile, {write_file(directory / kStateFile, content.state_json)});
  add_file(manifest, kConfigFile, {write_file(directory / kConfigFile, content.config_toml)});
  add_extra_files(directory, manifest);
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_directory()) sync_directory(entry.path());
  }
  sync_directory(directory);
  write_file(directory / kManifestFile, manifest_json(manifest));
}

// The manifest's safetensors files directly in the folder of `prefix`, whose file names start with it.
std::vector<std::string> tensor_files(const fs::path& directory, const Manifest& manifest, std::string_view prefix) {
  std::vector<std::string> paths;
  for (const auto& [name, digest] : manifest.files) {
    const bool deeper = name.find('/', prefix.size()) != std::string::npos;
    if (name.starts_with(prefix) && name.ends_with(".safetensors") && !deeper) paths.push_back(directory / name);
  }
  return paths;
}

Manifest check_checkpoint(const fs::path& directory, bool checksums) {
  Manifest manifest = read_manifest(directory);
  check_files(directory, manifest, checksums);
  return manifest;
}

LoadedCheckpoint load(const fs::path& directory, Verify verify) {
  const Manifest manifest = check_checkpoint(directory, verify == Verify::checksums);
  for (const char* name : {"config.json", kStateFile, kConfigFile}) {
    if (!manifest.files.contains(name)) {
      throw DataError(fmt::format("{}: does not list {}", (directory / kManifestFile).string(), name));
    }
  }
  LoadedCheckpoint loaded{.directory = directory, .step = manifest.step};
  loaded.hf_config = read_hf_config(directory / "config.json");
  // Weights may be in one file, in shards by size, or (later) in one file per rank.
  loaded.weights = TensorSet(tensor_files(directory, manifest, "model"));
  loaded.optimizer = TensorSet(tensor_files(directory, manifest, "orthant/optimizer"));
  loaded.state_json = read_file(directory / kStateFile);
  loaded.config_toml = read_file(directory / kConfigFile);
  return loaded;
}

// The newest complete member except `except`. Errors of damaged members are appended to `failures`.
std::optional<std::string> newest_complete(const fs::path& checkpoints_dir, const fs::path& except,
                                           std::string& failures) {
  std::vector<int64_t> steps = list_steps(checkpoints_dir);
  std::reverse(steps.begin(), steps.end());
  for (const int64_t step : steps) {
    const fs::path member = checkpoints_dir / step_name(step);
    if (member == except) continue;
    try {
      check_checkpoint(member, true);
      return member;
    } catch (const std::exception& error) {
      failures += fmt::format("\n  {}", error.what());
    }
  }
  return std::nullopt;
}

}  // namespace

std::string save_checkpoint(const std::string& checkpoints_dir, int64_t step, const CheckpointContent& content,
                            int keep_latest_k) {
  ORTHANT_CHECK(step >= 0 && keep_latest_k >= 0, step, keep_latest_k);
  ORTHANT_CHECK(parse_json(content.state_json, "CheckpointContent::state_json").is_object(), content.state_json);
  fs::path temporary;
  std::string saved;
  try {
    if (fs::create_directories(checkpoints_dir)) sync_directory(fs::canonical(checkpoints_dir).parent_path());
    remove_leftovers(checkpoints_dir);
    temporary = make_temporary(checkpoints_dir, step);
    write_content(temporary, step, content);
    saved = move_into_place(checkpoints_dir, step);
    point_latest(checkpoints_dir, step);
  } catch (const std::exception& error) {
    std::error_code ignored;
    if (!temporary.empty()) fs::remove_all(temporary, ignored);
    const auto* refused = dynamic_cast<const fs::filesystem_error*>(&error);
    if (!refused && !dynamic_cast<const DataError*>(&error)) throw;
    const std::string reason = refused ? explain(*refused) : error.what();
    const auto latest = follow_latest(checkpoints_dir);
    const std::string left = !saved.empty() ? fmt::format("{} is complete, but `latest` does not point to it", saved)
                             : latest       ? fmt::format("the last checkpoint, {}, is unchanged", *latest)
                                            : "no earlier checkpoint exists";
    throw DataError(fmt::format("saving the checkpoint of step {}: {}; {}", step, reason, left));
  }
  try {
    remove_old(checkpoints_dir, step, keep_latest_k);
  } catch (const fs::filesystem_error&) {
    // A directory that cannot be removed stays complete or has lost its name; the next save tries again.
  }
  return saved;
}

LoadedCheckpoint open_checkpoint(const std::string& directory, Verify verify) {
  std::error_code error;
  const fs::path path = fs::canonical(directory, error);
  if (error) throw DataError(fmt::format("{}: no such checkpoint: {}", directory, error.message()));
  try {
    return explained([&] { return load(path, verify); });
  } catch (const NewerFormat&) {
    throw;
  } catch (const DataError& damage) {
    std::string failures;
    const auto complete = newest_complete(path.parent_path(), path, failures);
    throw DataError(fmt::format(
        "{}; {}", damage.what(),
        complete ? fmt::format("the newest complete checkpoint in its folder is {}: to resume from it, move "
                               "{} away and resume again",
                               *complete, path.string())
                 : "its folder has no other complete checkpoint"));
  }
}

std::optional<std::string> find_latest(const std::string& checkpoints_dir) {
  if (const auto latest = follow_latest(checkpoints_dir)) return latest;
  std::string failures;
  const auto complete = explained([&] { return newest_complete(checkpoints_dir, {}, failures); });
  if (!complete && !failures.empty()) {
    throw DataError(
        fmt::format("{}: no checkpoint in this folder is complete and of this version:{}\n  to start from "
                    "the first step, move the folder away",
                    checkpoints_dir, failures));
  }
  return complete;
}

}  // namespace orthant

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
#include "checkpoint/hf_directory.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

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

// Adds the index of the weights, if they are in several files.
void add_index(const fs::path& directory, Manifest& manifest) {
  std::map<std::string, WrittenFile> files;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (tensor.file.starts_with("model")) files[tensor.file].tensors[name] = {tensor.dtype, tensor.shape, tensor.xxh3};
  }
  if (files.size() > 1) {
    add_file(manifest, kHfIndexFile, {write_file(directory / kHfIndexFile, hf_index_json(files))});
  }
}

// The files of all parts.
Manifest joined(std::span<const Manifest> parts, int64_t step) {
  Manifest all{.step = step, .files = {}, .tensors = {}};
  for (const Manifest& part : parts) {
    ORTHANT_CHECK(part.step == step, part.step, step);
    for (const auto& file : part.files) ORTHANT_CHECK(all.files.insert(file).second, file.first);
    for (const auto& tensor : part.tensors) ORTHANT_CHECK(all.tensors.insert(tensor).second, tensor.first);
  }
  return all;
}

// Writes all files that are not in the manifest yet, with the manifest last, and makes them durable, except for the
// directory's own name.
void write_content(const fs::path& directory, const CheckpointContent& content, Manifest manifest) {
  if (content.write_extra_files) content.write_extra_files(directory);
  for (const auto& [name, file] : write_hf_config(directory, content.hf_config)) add_file(manifest, name, file);
  add_file(manifest, kStateFile, {write_file(directory / kStateFile, content.state_json)});
  add_file(manifest, kConfigFile, {write_file(directory / kConfigFile, content.config_toml)});
  add_index(directory, manifest);
  add_extra_files(directory, manifest);
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_directory()) sync_directory(entry.path());
  }
  sync_directory(directory);
  write_file(directory / kManifestFile, manifest_json(manifest));
}

// True for a safetensors file directly in the folder of `prefix`, whose name starts with it.
bool is_tensor_file(const std::string& name, std::string_view prefix) {
  return name.starts_with(prefix) && name.ends_with(".safetensors") && name.find('/', prefix.size()) == name.npos;
}

// The tensors of these files. Manifests of version 1 list no tensors, so all files are opened.
TensorSet tensors_in(const fs::path& directory, const Manifest& manifest, std::string_view prefix) {
  if (manifest.tensors.empty()) {
    std::vector<std::string> paths;
    for (const auto& [name, digest] : manifest.files) {
      if (is_tensor_file(name, prefix)) paths.push_back(directory / name);
    }
    return TensorSet(paths);
  }
  std::map<std::string, TensorEntry> entries;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (!is_tensor_file(tensor.file, prefix)) continue;
    entries.emplace(name, TensorEntry{directory / tensor.file, tensor.dtype, tensor.shape});
  }
  return TensorSet(std::move(entries));
}

Manifest check_checkpoint(const fs::path& directory, ChecksummedFiles checksummed) {
  Manifest manifest = read_manifest(directory);
  const std::string name = directory.filename();
  if (name.starts_with("step-") && name != step_name(manifest.step)) {
    throw DataError(fmt::format("{}: holds the checkpoint of step {}, so its name must be {}", directory.string(),
                                manifest.step, step_name(manifest.step)));
  }
  check_files(directory, manifest, checksummed);
  return manifest;
}

LoadedCheckpoint load(const fs::path& directory, ChecksummedFiles checksummed) {
  const Manifest manifest = check_checkpoint(directory, checksummed);
  LoadedCheckpoint loaded{.directory = directory, .step = manifest.step};
  loaded.hf_config = read_hf_config(directory / "config.json");
  loaded.weights = tensors_in(directory, manifest, "model");
  loaded.optimizer = tensors_in(directory, manifest, "orthant/optimizer");
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
      check_checkpoint(member, kAllFiles);
      return member;
    } catch (const std::exception& error) {
      failures += fmt::format("\n  {}", error.what());
    }
  }
  return std::nullopt;
}

// Names the checkpoints that a failed save leaves, as the end of its error. Empty if the folder cannot be read.
std::string describe_earlier(const std::string& checkpoints_dir) {
  try {
    if (const auto latest = follow_latest(checkpoints_dir)) {
      return fmt::format("; the last checkpoint, {}, is unchanged", *latest);
    }
    return list_steps(checkpoints_dir).empty() ? "; no earlier checkpoint exists"
                                               : "; the earlier checkpoints are unchanged";
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace

NewCheckpoint::NewCheckpoint(std::string checkpoints_dir, int64_t step)
    : checkpoints_dir_(std::move(checkpoints_dir)), step_(step), directory_(temporary_of(checkpoints_dir_, step)) {
  ORTHANT_CHECK(step >= 0, step);
}

std::string NewCheckpoint::target() const { return fs::path(checkpoints_dir_) / step_name(step_); }

void NewCheckpoint::begin() const {
  explained([&] {
    if (fs::create_directories(checkpoints_dir_)) sync_directory(fs::canonical(checkpoints_dir_).parent_path());
    remove_leftovers(checkpoints_dir_);
    make_temporary(checkpoints_dir_, step_);
    fs::create_directory(fs::path(directory_) / "orthant");
  });
}

void NewCheckpoint::complete(const CheckpointContent& content, std::span<const Manifest> parts,
                             int keep_latest_k) const {
  ORTHANT_CHECK(keep_latest_k >= 0, keep_latest_k);
  ORTHANT_CHECK(parse_json(content.state_json, "CheckpointContent::state_json").is_object(), content.state_json);
  explained([&] {
    write_content(directory_, content, joined(parts, step_));
    move_into_place(checkpoints_dir_, step_);
  });
  try {
    explained([&] { point_latest(checkpoints_dir_, step_); });
  } catch (const DataError& error) {
    throw DataError(fmt::format("{} is complete, but `latest` does not point to it: {}", target(), error.what()));
  }
  try {
    remove_old(checkpoints_dir_, step_, keep_latest_k);
  } catch (const fs::filesystem_error&) {
    // A directory that cannot be removed stays complete or has lost its name; the next save tries again.
  }
}

DataError NewCheckpoint::abandon(const std::string& reason) const {
  std::error_code ignored;
  const bool has_moved = !fs::exists(directory_, ignored) && fs::exists(target(), ignored);
  fs::remove_all(directory_, ignored);
  return DataError(fmt::format("saving the checkpoint of step {}: {}{}", step_, reason,
                               has_moved ? "" : describe_earlier(checkpoints_dir_)));
}

LoadedCheckpoint open_checkpoint(const std::string& directory, ChecksummedFiles checksummed) {
  std::error_code error;
  const fs::path path = fs::canonical(directory, error);
  if (error) throw DataError(fmt::format("{}: no such checkpoint: {}", directory, error.message()));
  try {
    return explained([&] { return load(path, checksummed); });
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
                 : "its folder has no other complete checkpoint; a run without --resume starts from the first step"));
  }
}

std::optional<std::string> replace_damaged_latest(const std::string& checkpoints_dir) {
  const auto latest = follow_latest(checkpoints_dir);
  if (!latest) return std::nullopt;
  try {
    explained([&] { check_checkpoint(fs::canonical(*latest), kAllFiles); });
    return std::nullopt;
  } catch (const NewerFormat&) {
    throw;
  } catch (const DataError& damage) {
    std::string failures;
    const auto complete = explained([&] { return newest_complete(checkpoints_dir, {}, failures); });
    if (!complete) throw;
    const Manifest manifest = read_manifest(*complete);
    explained([&] { point_latest(checkpoints_dir, manifest.step); });
    return damage.what();
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

// Reads the manifests of a folder of checkpoints. A damaged checkpoint is listed with its damage.
#include "checkpoint/list.h"

#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/file_errors.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/retention.h"
#include "checkpoint/safetensors.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

int64_t bytes_on_disk(const fs::path& directory) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() && !entry.is_symlink()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

// Manifests of version 1 list no tensors.
int64_t count_tensors(const fs::path& directory, const Manifest& manifest) {
  if (!manifest.tensors.empty()) return static_cast<int64_t>(manifest.tensors.size());
  int64_t count = 0;
  for (const auto& [name, digest] : manifest.files) {
    if (!name.ends_with(".safetensors")) continue;
    count += static_cast<int64_t>(SafetensorsFile(directory / name).tensors().size());
  }
  return count;
}

// A text of state.json; empty if there is none under this name.
std::string text_of(const nlohmann::json& state, const char* field) {
  const auto found = state.is_object() ? state.find(field) : state.end();
  return state.is_object() && found != state.end() && found->is_string() ? found->get<std::string>() : "";
}

ListedCheckpoint examine(const fs::path& directory) {
  ListedCheckpoint listed;
  listed.name = directory.filename();
  try {
    explained([&] {
      listed.bytes = bytes_on_disk(directory);
      const Manifest manifest = read_manifest(directory);
      listed.step = manifest.step;
      struct stat status{};
      if (::stat((directory / kManifestFile).c_str(), &status) == 0) listed.saved_unix_s = status.st_mtime;
      check_files(directory, manifest, kNoFiles);
      listed.num_tensors = count_tensors(directory, manifest);
      const std::string path = directory / "orthant/state.json";
      const nlohmann::json state = parse_sorted_json(read_file(path), path);
      listed.dtype = text_of(state, "dtype");
      listed.mesh = text_of(state, "mesh");
    });
  } catch (const DataError& damage) {
    listed.problem = damage.what();
  }
  return listed;
}

}  // namespace

CheckpointList list_checkpoints(const std::string& directory) {
  std::error_code error;
  fs::path path = fs::canonical(directory, error);
  if (error || !fs::is_directory(path)) {
    throw DataError(fmt::format("{}: {}; name a run folder, such as runs/jargon, or a checkpoint", directory,
                                error ? error.message() : "not a directory"));
  }
  const bool is_checkpoint = fs::exists(path / "orthant");
  if (fs::is_directory(path / "checkpoints")) path /= "checkpoints";
  CheckpointList list;
  list.directory = is_checkpoint ? path.parent_path() : path;
  const auto latest = follow_latest(list.directory);
  list.has_latest = latest.has_value();
  const auto add = [&](const fs::path& checkpoint) -> ListedCheckpoint& {
    ListedCheckpoint& listed = list.checkpoints.emplace_back(examine(checkpoint));
    listed.is_latest = latest && fs::path(*latest).filename() == checkpoint.filename();
    return listed;
  };
  if (is_checkpoint) {
    add(path);
    return list;
  }
  for (const int64_t step : list_steps(path)) add(path / step_name(step)).step = step;
  list.leftovers = list_leftovers(path);
  if (list.checkpoints.empty() && list.leftovers.empty()) {
    throw DataError(
        fmt::format("{}: there are no checkpoints; name a run folder that has saved one, its folder of "
                    "checkpoints, or a checkpoint",
                    directory));
  }
  return list;
}

}  // namespace orthant

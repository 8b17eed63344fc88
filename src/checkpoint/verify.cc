// Verifies the files of a checkpoint one by one, so that a damaged file does not hide another one.
#include "checkpoint/verify.h"

#include <filesystem>
#include <optional>

#include "base/errors.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

std::string form_text(Dtype dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

// Compares the tensors of one file with those that the manifest states for it.
void verify_tensors(const std::string& path, const std::string& name, const std::map<std::string, WrittenTensor>& found,
                    const Manifest& manifest, std::vector<std::string>& problems) {
  for (const auto& [tensor, expected] : manifest.tensors) {
    if (expected.file != name) continue;
    const auto here = found.find(tensor);
    const std::string where = fmt::format("{}: tensor {}", path, printable(tensor));
    if (here == found.end()) {
      problems.push_back(fmt::format("{}: missing, although the manifest lists it", where));
    } else if (here->second.dtype != expected.dtype || here->second.shape != expected.shape) {
      problems.push_back(fmt::format("{}: {}, expected {}", where, form_text(here->second.dtype, here->second.shape),
                                     form_text(expected.dtype, expected.shape)));
    } else if (here->second.xxh3 != expected.xxh3) {
      problems.push_back(
          fmt::format("{}: damaged: XXH3 {:016x}, expected {:016x}", where, here->second.xxh3, expected.xxh3));
    }
  }
  if (manifest.tensors.empty()) return;  // version 1
  for (const auto& [tensor, ignored] : found) {
    if (!manifest.tensors.contains(tensor)) {
      problems.push_back(fmt::format("{}: tensor {}: not in the manifest", path, printable(tensor)));
    }
  }
}

// Checks a file of tensors with one reading. A header that cannot be read is reported by the checksums, which also say
// where the file is damaged.
void verify_tensor_file(const std::string& path, const std::string& name, const Manifest& manifest,
                        VerifiedCheckpoint& result) {
  std::optional<SafetensorsFile> file;
  try {
    file.emplace(path);
  } catch (const DataError&) {
    check_digest(path, digest_file(path), manifest.files.at(name));
    throw;
  }
  const WrittenFile found = digest_safetensors(*file);
  result.num_tensors += static_cast<int64_t>(found.tensors.size());
  verify_tensors(path, name, found.tensors, manifest, result.problems);
  check_digest(path, found.digest, manifest.files.at(name));
}

}  // namespace

VerifiedCheckpoint verify_checkpoint(const std::string& directory) {
  VerifiedCheckpoint result;
  if (!fs::is_directory(directory)) {
    throw DataError(
        fmt::format("{}: no such directory; name a checkpoint, such as runs/jargon/checkpoints/latest, or a "
                    "run folder",
                    directory));
  }
  if (!fs::exists(fs::path(directory) / kManifestFile) && !fs::exists(fs::path(directory) / "orthant")) {
    result.problems.push_back(
        fmt::format("{}: there are no checksums, because {} is missing, which only checkpoints of Orthant have; to "
                    "compare a model with another copy: orthant checkpoint diff {} COPY --weights",
                    directory, kManifestFile, directory));
    return result;
  }
  try {
    const Manifest manifest = read_manifest(directory);
    result.num_files = static_cast<int64_t>(manifest.files.size());
    for (const auto& [name, expected] : manifest.files) {
      const std::string path = fs::path(directory) / name;
      result.bytes += expected.bytes;
      try {
        check_size(path, expected);
        if (name.ends_with(".safetensors")) {
          verify_tensor_file(path, name, manifest, result);
        } else {
          check_digest(path, digest_file(path), expected);
        }
      } catch (const DataError& damage) {
        result.problems.push_back(damage.what());
      }
    }
  } catch (const DataError& damage) {  // of the manifest
    result.problems.push_back(damage.what());
  }
  return result;
}

}  // namespace orthant

// The manifest of a checkpoint: the size and the checksums of every file, and the hash of every tensor. It is written
// last. A directory with a manifest was complete when it was written; if its files still match the manifest, it is
// complete now.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/errors.h"
#include "checkpoint/files.h"
#include "checkpoint/safetensors.h"

namespace orthant {

inline constexpr const char* kManifestFile = "orthant/manifest.json";
inline constexpr const char* kStateFile = "orthant/state.json";
inline constexpr const char* kConfigFile = "orthant/config.toml";

/// Entry of the manifest for a tensor. Its `xxh3` is the same for every layout that saved it; see tensor_hash.h.
struct ManifestTensor {
  Dtype dtype = Dtype::f32;
  std::vector<int64_t> shape;
  std::string file;  // path within the checkpoint
  uint64_t xxh3 = 0;
  bool operator==(const ManifestTensor&) const = default;
};

struct Manifest {
  int64_t step = 0;
  std::map<std::string, FileDigest> files;        // by path within the checkpoint
  std::map<std::string, ManifestTensor> tensors;  // weights and optimizer states, by name; none in version 1
  bool operator==(const Manifest&) const = default;
};

/// Adds a file and its tensors. LogicError if the manifest already has the file or one of the tensors.
void add_file(Manifest& manifest, const std::string& path, const WrittenFile& file);

/// Text of the manifest, with a checksum of itself.
std::string manifest_json(const Manifest& manifest);
/// Error for a checkpoint of a newer format: it is complete, but this program cannot read it.
struct NewerFormat : DataError {
  using DataError::DataError;
};
/// Reads a manifest of this or an earlier version. Throws DataError if the text is damaged or no manifest, or names a
/// path outside the checkpoint. Throws NewerFormat if a later version of the program wrote it.
Manifest parse_manifest(const std::string& text, const std::string& source);
/// Reads the manifest of a checkpoint. Throws as parse_manifest() does, and DataError if the directory has none or if
/// the manifest lacks config.json, kStateFile or kConfigFile.
Manifest read_manifest(const std::string& directory);
/// Throws DataError with the path and both sizes if the file has another size.
void check_size(const std::string& path, const FileDigest& expected);
/// Throws DataError with path, offset, and the expected and the found value if a checksum differs.
void check_digest(const std::string& path, const FileDigest& found, const FileDigest& expected);
/// The files whose sizes and checksums a process compares: every `every`-th one from number `first` on. Ranks that read
/// one checkpoint divide its files among them. With every = 0, the process compares the sizes of all, but no checksums.
struct ChecksummedFiles {
  int64_t first = 0, every = 1;
  bool include(int64_t number) const { return every > 0 && number % every == first; }
};
inline constexpr ChecksummedFiles kAllFiles, kNoFiles{0, 0};

/// Compares files with the manifest: first their existence and sizes, then their checksums. Throws DataError with file,
/// offset, and the expected and the found value.
void check_files(const std::string& directory, const Manifest& manifest, ChecksummedFiles checksummed = kAllFiles);

}  // namespace orthant

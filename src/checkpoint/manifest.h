// The manifest of a checkpoint: the size and the checksums of every file. It is written last. A directory with a
// manifest was complete when it was written; if its files still match the manifest, it is complete now.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/errors.h"
#include "checkpoint/files.h"

namespace orthant {

inline constexpr const char* kManifestFile = "orthant/manifest.json";

struct Manifest {
  int64_t step = 0;
  std::map<std::string, FileDigest> files;  // by path within the checkpoint
  bool operator==(const Manifest&) const = default;
};

/// Text of the manifest, with a checksum of itself.
std::string manifest_json(const Manifest& manifest);
/// Error for a checkpoint of a newer format: it is complete, but this program cannot read it.
struct NewerFormat : DataError {
  using DataError::DataError;
};
/// Throws DataError if the text is damaged or no manifest, or names a path outside the checkpoint. Throws NewerFormat
/// if a later version of the program wrote it.
Manifest parse_manifest(const std::string& text, const std::string& source);
/// Compares every file with the manifest: first existence and size of all, then all checksums if `checksums` is set.
/// Throws DataError with file, offset, and the expected and the found value.
void check_files(const std::string& directory, const Manifest& manifest, bool checksums);

}  // namespace orthant

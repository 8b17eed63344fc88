// The manifest of a checkpoint: every file with its size and checksums. A directory that has a manifest was whole when
// it was written; one whose files still agree with it is whole now.
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
  std::map<std::string, FileDigest> files;  // path within the checkpoint -> digest
  bool operator==(const Manifest&) const = default;
};

/// The manifest's text; it carries a checksum of itself.
std::string manifest_json(const Manifest& manifest);
/// A checkpoint of a newer format: whole, but not for this program.
struct NewerFormat : DataError {
  using DataError::DataError;
};
/// Throws DataError when the text is not a manifest, or damaged, or names a path outside the checkpoint.
Manifest parse_manifest(const std::string& text, const std::string& source);
/// Compares every file with the manifest: presence and size of all, then (if wanted) all checksums. Throws DataError
/// with file, offset, what was expected and what was found.
void check_files(const std::string& directory, const Manifest& manifest, bool checksums);

}  // namespace orthant

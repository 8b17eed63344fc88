// Checks every byte of a saved checkpoint, and reports all damages at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// The outcome of verify_checkpoint(): what was read, and one message for each damage.
struct VerifiedCheckpoint {
  int64_t num_files = 0;  // that the manifest lists
  int64_t bytes = 0;      // of these files, as the manifest states
  int64_t num_tensors = 0;
  std::vector<std::string> problems;  // each names a file, with offset, tensor, and the expected and the found value
  bool ok() const { return problems.empty(); }
};

/// Reads all files of a checkpoint once, and compares their sizes and checksums, and the hashes of their tensors, with
/// the manifest. Manifests of version 1 have no hashes of tensors. A directory without a readable manifest is a
/// problem, too. Throws DataError if the directory does not exist.
VerifiedCheckpoint verify_checkpoint(const std::string& directory);

}  // namespace orthant

// Files that survive a crash and a full disk: each is written under a temporary name in the same folder, synced, and
// renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace orthant {

/// Checksums are computed per block, so that an error message can say where a file is damaged.
inline constexpr int64_t kDigestBlockBytes = int64_t{4} << 20;

/// Entry of the manifest for a file: its size, and the 64-bit XXH3 of each block of kDigestBlockBytes. The last block
/// may be shorter.
struct FileDigest {
  int64_t bytes = 0;
  std::vector<uint64_t> block_xxh3;
  bool operator==(const FileDigest&) const = default;
};

/// Computes the digest of bytes that arrive in pieces of any size. Tensors are hashed with smaller blocks than files.
class Digester {
 public:
  explicit Digester(int64_t block_bytes = kDigestBlockBytes) : block_bytes_(block_bytes) {}
  void add(std::span<const std::byte> bytes);
  /// Returns the digest of all bytes added. Call it once, at the end.
  FileDigest finish();

 private:
  void end_block();

  int64_t block_bytes_;
  FileDigest digest_;
  int64_t filled_bytes_ = 0;  // in the current block
  Hasher hasher_;             // of the current block
};

/// Writes a temporary file in the same folder as `path`; commit() renames it to `path`. Destroyed without commit(), it
/// leaves no file. Every failure throws DataError with path, offset and the system's message (a full disk, a quota,
/// ...).
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Appends directly from the caller's memory; nothing is buffered.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Syncs the file, renames it to its final name, and syncs the directory. Returns the digest of the content.
  FileDigest commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  int64_t offset_bytes_ = 0;
  Digester digester_;
};

/// Writes a small text with an OutputFile.
FileDigest write_file(const std::string& path, std::string_view text);
/// Size and checksums of an existing file. Throws DataError if it cannot be read.
FileDigest digest_file(const std::string& path);
/// Makes the content of an existing file durable (fsync). Throws DataError.
void sync_file(const std::string& path);
/// Makes the names in a directory durable (fsync of the directory). Throws DataError.
void sync_directory(const std::string& directory);

}  // namespace orthant

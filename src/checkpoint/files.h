// Files that survive a crash and a full disk: written beside their final name, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace orthant {

/// Checksums are per block, so that a message can say where a file is damaged.
inline constexpr int64_t kDigestBlockBytes = int64_t{4} << 20;

/// What a manifest says of a file: its size, and the XXH3 (64 bits) of each block of kDigestBlockBytes, the last one
/// shorter.
struct FileDigest {
  int64_t bytes = 0;
  std::vector<uint64_t> block_xxh3;
  bool operator==(const FileDigest&) const = default;
};

/// Digest of bytes that come in pieces of any size.
class Digester {
 public:
  void add(std::span<const std::byte> bytes);
  /// Of all that was added; call it once, at the end.
  FileDigest finish();

 private:
  void end_block();

  FileDigest digest_;
  int64_t block_bytes_ = 0;  // in the block being hashed
  Hasher hasher_;            // of that block
};

/// Writes a temporary sibling of `path`; commit() makes it the file. Destroyed before that, it leaves nothing behind.
/// Every failure of the system throws DataError with path, offset and the system's words (a full disk, a quota, ...).
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Appends straight from the caller's memory; nothing is kept.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Syncs the file, renames it to its final name, syncs the directory. Returns the digest of what was written.
  FileDigest commit();

 private:
  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
  int64_t offset_bytes_ = 0;
  Digester digester_;
};

/// OutputFile in one call, for small texts.
FileDigest write_file(const std::string& path, std::string_view text);
/// Whole content of a file of at most `limit_bytes`. Throws DataError when it is missing, larger, or cannot be read.
std::string read_file(const std::string& path, int64_t limit_bytes = 100'000'000);
/// Size and checksums of a file that exists. Throws DataError when it cannot be read.
FileDigest digest_file(const std::string& path);
/// Makes the content of a file that somebody else wrote durable (fsync). Throws DataError.
void sync_file(const std::string& path);
/// Makes names in a directory durable (fsync of the directory). Throws DataError.
void sync_directory(const std::string& directory);

}  // namespace orthant

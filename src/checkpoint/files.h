// Files that survive a crash and a full disk: written beside their final name, synced, renamed; read by mapping them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace orthant {

/// What a manifest says of a file: its size and its XXH3 checksum (64 bits).
struct FileDigest {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
  bool operator==(const FileDigest&) const = default;
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
  void* hash_ = nullptr;  // XXH3_state_t
};

/// A whole file mapped read-only; unmapped at the end. Throws DataError when it is missing or not a regular file.
/// A file that another process shortens meanwhile raises SIGBUS: our writers rename, they never shorten.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(address_), size_bytes_}; }

 private:
  void* address_ = nullptr;
  std::size_t size_bytes_ = 0;
};

/// OutputFile in one call, for small texts.
FileDigest write_file(const std::string& path, std::string_view text);
/// Whole content of a file of at most `limit_bytes`. Throws DataError when it is missing, larger, or cannot be read.
std::string read_file(const std::string& path, int64_t limit_bytes = 100'000'000);
/// Size and checksum of a file that exists. Throws DataError when it cannot be read.
FileDigest digest_file(const std::string& path);
/// XXH3 of bytes in memory.
uint64_t xxh3(std::string_view bytes);
/// Makes names in a directory durable (fsync of the directory). Throws DataError.
void sync_directory(const std::string& directory);

}  // namespace orthant

// Files to read: memory-mapped, with an error message if a file is truncated while it is mapped; or as a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace orthant {

/// Maps a whole file read-only and unmaps it on destruction. Throws DataError if the file is missing or not regular.
/// If the file is truncated or its disk fails later, the next access raises SIGBUS. A signal handler cannot throw, so
/// the process prints the file's name on stderr and exits with kFailed.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const;
  const std::string& path() const;

 private:
  struct Mapping;
  std::unique_ptr<Mapping> mapping_;
};

/// Lets the system take back the memory of these bytes of a mapping. If they are read again, they come from the file.
void forget(std::span<const std::byte> bytes);

/// Returns the content of a file. Throws DataError if it is missing, not regular, or exceeds `limit_bytes`.
std::string read_file(const std::string& path, int64_t limit_bytes = 100'000'000);

}  // namespace orthant

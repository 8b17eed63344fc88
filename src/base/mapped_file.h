// Files read by mapping them, and a word from a process that loses one under its hands.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace orthant {

/// A whole file mapped read-only; unmapped at the end. Throws DataError when it is missing or not a regular file.
/// Where the file is shortened or its disk fails later, the system sends SIGBUS at the next touch: nothing can be
/// thrown from there, so the process names the file on stderr and ends with kFailed.
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

}  // namespace orthant

// A folder for files that a command needs while it runs.
#pragma once

#include <filesystem>
#include <string>

namespace orthant {

/// A new folder, which is removed with its contents when this object is destroyed. Its name is `name`, a dot and six
/// random characters. It has a lock, so that folders with this name that killed processes have left, also those of
/// other containers, are recognized and removed. Throws DataError if the folder cannot be created.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;
};

}  // namespace orthant

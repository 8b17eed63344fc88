// A folder for files that a command needs while it runs.
#pragma once

#include <filesystem>
#include <string>

namespace orthant {

/// A new folder, which is removed with its contents when this object is destroyed. `name` is its path but for six
/// random characters at the end; its last component begins with ".orthant-". The folder has a lock. Folders with the
/// same name and no lock, which killed processes have left, are removed, also those of other containers. Throws
/// DataError if the folder cannot be created.
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

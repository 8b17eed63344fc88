// A folder for files that a command needs while it runs.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/errors.h"
#include "data/folder_lock.h"

namespace orthant {

/// A new folder, which is removed with its contents when this object is destroyed. Its name is `name` and the number of
/// this process. Folders with this name that ended processes have left are removed.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& name) : path_(fmt::format("{}{}", name.string(), ::getpid())) {
    const std::string parent = name.parent_path().string();
    remove_stale_temporaries(parent.empty() ? "." : parent, name.filename().string());
    std::error_code error;
    std::filesystem::remove_all(path_, error);  // of an ended process with the number of this one, as in containers
    std::filesystem::create_directories(path_, error);
    if (error) throw DataError(fmt::format("{}: cannot be created: {}", path_, error.message()));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace orthant

#include "data/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/errors.h"

namespace orthant {

void FolderLock::open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw ConfigError(fmt::format("job.dump_folder: the folder {} cannot be made: {}; choose one that you may write to",
                                  folder, error ? error.message() : std::strerror(errno)));
}

FolderLock::FolderLock(const std::string& folder) {
  open(folder);
  while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

std::unique_ptr<FolderLock> FolderLock::if_free(const std::string& folder) {
  std::unique_ptr<FolderLock> lock(new FolderLock);
  lock->open(folder);
  const bool taken = ::flock(lock->descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return taken ? nullptr : std::move(lock);
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace orthant

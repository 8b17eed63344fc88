#include "data/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/errors.h"

namespace orthant {

namespace fs = std::filesystem;

namespace {

/// The process id at the end of a name that ends in .tmpPID; 0 for all other names.
int owner_of(std::string_view name) {
  constexpr std::string_view kMark = ".tmp";
  const size_t mark = name.rfind(kMark);
  if (mark == std::string_view::npos) return 0;
  int pid = 0;
  const char *begin = name.data() + mark + kMark.size(), *end = name.data() + name.size();
  return std::from_chars(begin, end, pid).ptr == end && pid > 0 ? pid : 0;
}

}  // namespace

void remove_stale_temporaries(const std::string& folder, std::string_view beginning) {
  std::error_code ignored;  // a file that cannot be removed does no harm
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename();
    const int owner = owner_of(name);
    const bool stale = owner > 0 && ::kill(owner, 0) != 0 && errno == ESRCH;
    if (stale && name.starts_with(beginning)) fs::remove_all(entry->path(), ignored);
  }
}

void FolderLock::open(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0)
    throw ConfigError(
        fmt::format("job.dump_folder: the folder {} cannot be created: {}; choose one that you may write to", folder,
                    error ? error.message() : std::strerror(errno)));
}

FolderLock::FolderLock(const std::string& folder) {
  open(folder);
  int refused;
  do refused = ::flock(descriptor_, LOCK_EX);
  while (refused != 0 && errno == EINTR);
  // If locking is not supported, a process on another machine may be using temporary files here: remove none.
  if (refused == 0) remove_stale_temporaries(folder);
}

std::unique_ptr<FolderLock> FolderLock::try_acquire(const std::string& folder) {
  std::unique_ptr<FolderLock> lock(new FolderLock);
  lock->open(folder);
  const bool taken = ::flock(lock->descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  return taken ? nullptr : std::move(lock);
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace orthant

#include "app/scratch_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// Opens the folder and locks it. Negative if another process holds the lock, if the folder is gone, or if it is another
// user's or a symbolic link, as somebody could plant in /tmp. On a file system without locks it returns a descriptor
// without one if `needs_lock` is false.
int open_locked(const std::string& folder, bool needs_lock) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return -1;
  const bool is_locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0, is_taken = !is_locked && errno == EWOULDBLOCK;
  struct stat found = {}, held = {};
  const bool is_there = ::lstat(folder.c_str(), &found) == 0 && ::fstat(descriptor, &held) == 0 &&
                        found.st_ino == held.st_ino && found.st_dev == held.st_dev && held.st_uid == ::geteuid();
  if (is_there && !is_taken && (is_locked || !needs_lock)) return descriptor;
  ::close(descriptor);
  return -1;
}

// Removes the folders of this name whose process has ended.
void remove_stale_folders(const fs::path& parent, const std::string& name) {
  std::error_code ignored;  // a folder that cannot be removed does no harm
  for (fs::directory_iterator entry(parent, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string found = entry->path().filename();
    if (!found.starts_with(name + ".") || found.size() != name.size() + 7) continue;
    const int lock = open_locked(entry->path(), true);
    if (lock < 0) continue;
    fs::remove_all(entry->path(), ignored);
    ::close(lock);
  }
}

}  // namespace

ScratchFolder::ScratchFolder(const fs::path& name) {
  ORTHANT_CHECK(name.filename().string().starts_with(".orthant-"), name.string());
  const fs::path parent = name.has_parent_path() ? name.parent_path() : ".";
  remove_stale_folders(parent, name.filename());
  std::error_code error;
  fs::create_directories(parent, error);
  while (lock_ < 0) {  // another process may take a folder without a lock for a stale one, and remove it
    path_ = name.string() + ".XXXXXX";
    if (error || ::mkdtemp(path_.data()) == nullptr) {
      throw DataError(fmt::format("a folder in {} cannot be created: {}; choose a place where you may write",
                                  parent.string(), error ? error.message() : std::strerror(errno)));
    }
    lock_ = open_locked(path_, false);
  }
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

}  // namespace orthant

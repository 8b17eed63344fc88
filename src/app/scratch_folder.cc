#include "app/scratch_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/errors.h"

namespace orthant {
namespace {

namespace fs = std::filesystem;

// The descriptor of the folder's lock; negative if another process holds it, or if the folder cannot be opened.
int try_lock(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0 && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return descriptor;
  if (descriptor >= 0) ::close(descriptor);
  return -1;
}

// Removes the folders of this name whose process has ended. A young one may not have its lock yet.
void remove_stale_folders(const fs::path& parent, const std::string& name) {
  constexpr auto kYoung = std::chrono::minutes(1);
  std::error_code ignored;  // a folder that cannot be removed does no harm
  for (fs::directory_iterator entry(parent, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string found = entry->path().filename();
    if (!found.starts_with(name + ".") || found.size() != name.size() + 7 || !entry->is_directory(ignored)) continue;
    const auto changed = entry->last_write_time(ignored);
    if (ignored || fs::file_time_type::clock::now() - changed < kYoung) continue;
    const int lock = try_lock(entry->path());
    if (lock < 0) continue;
    fs::remove_all(entry->path(), ignored);
    ::close(lock);
  }
}

}  // namespace

ScratchFolder::ScratchFolder(const fs::path& name) : path_(name.string() + ".XXXXXX") {
  const fs::path parent = name.has_parent_path() ? name.parent_path() : ".";
  remove_stale_folders(parent, name.filename());
  std::error_code error;
  fs::create_directories(parent, error);
  if (error || ::mkdtemp(path_.data()) == nullptr) {
    throw DataError(fmt::format("a folder in {} cannot be created: {}; choose a place where you may write",
                                parent.string(), error ? error.message() : std::strerror(errno)));
  }
  lock_ = try_lock(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace orthant

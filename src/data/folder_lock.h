// An exclusive lock on a work folder. Of several ranks that need the same tokenized text, one produces it and the
// others find it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace orthant {

/// Creates the folder if needed, waits until no other process or thread holds its lock, then removes temporary files of
/// dead processes. The destructor, or the death of the process, releases the lock. On a file system without locks it
/// locks nothing; files are still replaced atomically. Throws ConfigError if the folder cannot be created.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  /// Acquires the lock without waiting. Null if another process or thread holds it.
  static std::unique_ptr<FolderLock> try_acquire(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  FolderLock() = default;
  void open(const std::string& folder);

  int descriptor_ = -1;
};

/// Removes files whose names start with `beginning` and end in .tmpPID if process PID no longer exists.
void remove_stale_temporaries(const std::string& folder, std::string_view beginning = "");

}  // namespace orthant

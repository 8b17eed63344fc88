// One at a time in a work folder: of several ranks that want the same tokenised text, one makes it and the rest find
// it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace orthant {

/// Makes the folder if there is none and waits until no other process or thread holds it, then removes what dead ones
/// left there; lets go when it goes out of scope, or when the process dies. Where the file system knows no locks there
/// is none, and files are still replaced whole. Throws ConfigError if the folder cannot be made.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  /// The lock if nobody holds it; does not wait. Null where another process or thread does.
  static std::unique_ptr<FolderLock> if_free(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  FolderLock() = default;
  void open(const std::string& folder);

  int descriptor_ = -1;
};

/// Removes from the folder what begins so and ends in .tmpPID where no such process lives.
void remove_stale_temporaries(const std::string& folder, std::string_view beginning = "");

}  // namespace orthant

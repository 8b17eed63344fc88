// Remedies for the error codes of file systems.
#include "base/file_errors.h"

#include <cerrno>

namespace orthant {
namespace {

const char* way_out(int reason) {
  switch (reason) {
    case ELOOP:
      return "a symbolic link in this path points to itself; name the file that it should point to";
    case ENAMETOOLONG:
      return "a part of this path is longer than the file system allows; choose a shorter one";
    case ENOTDIR:
      return "a file has the name of a folder in this path; move the file, or choose another path";
    case EISDIR:
    case EEXIST:
    case ENOTEMPTY:
      return "this path must be a file or a link, but it is a folder; move the folder";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a path that you may read and write";
    case ENOSPC:
    case EDQUOT:
      return "free some space, or choose another folder";
    default:
      return "check this path, or choose another";
  }
}

}  // namespace

std::string explain(const std::filesystem::filesystem_error& error) {
  // If there are two paths, the second is the target of the operation, and the target causes the error.
  const std::filesystem::path& path = error.path2().empty() ? error.path1() : error.path2();
  return fmt::format("{}: {}; {}", path.string(), error.code().message(), way_out(error.code().value()));
}

}  // namespace orthant

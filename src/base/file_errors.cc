// Remedies for the error codes of file systems.
#include "base/file_errors.h"

#include <cerrno>

namespace orthant {
namespace {

const char* way_out(int reason) {
  switch (reason) {
    case ELOOP:
      return "a symbolic link on the way leads back to itself; name the file that it should lead to";
    case ENAMETOOLONG:
      return "a part of this path is longer than the file system allows; choose a shorter one";
    case ENOTDIR:
      return "a file stands where a folder is expected; move it away, or name another path";
    case EISDIR:
    case EEXIST:
    case ENOTEMPTY:
      return "a folder stands where a file or a link is expected; move it away";
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a path that you may read and write";
    case ENOSPC:
    case EDQUOT:
      return "free some space, or choose another folder";
    default:
      return "look at this path, or choose another";
  }
}

}  // namespace

std::string explain(const std::filesystem::filesystem_error& error) {
  // If there are two paths, the second is the target of the operation, and the target causes the error.
  const std::filesystem::path& path = error.path2().empty() ? error.path1() : error.path2();
  return fmt::format("{}: {}; {}", path.string(), error.code().message(), way_out(error.code().value()));
}

}  // namespace orthant

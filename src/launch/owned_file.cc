// Opens files without following symbolic links, and checks the owner and the permissions of the open file, which cannot
// be exchanged any more.
#include "launch/owned_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace orthant {
namespace {

[[noreturn]] void refuse_file(const std::string& path, const std::string& why) {
  throw CommError(
      fmt::format("the ranks cannot connect through the file {}: {}; remove it, set TMPDIR to a folder in which only "
                  "this user can write, or set MASTER_ADDR and MASTER_PORT (the same for all ranks)",
                  path, why));
}

}  // namespace

std::string why_not_owned(int fd, mode_t forbidden) {
  struct stat status{};
  if (fstat(fd, &status) != 0) return fmt::format("its owner is unknown: {}", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return "it is not a regular file";
  if (status.st_uid != geteuid())
    return fmt::format("it belongs to the user with id {}, not to this one ({})", status.st_uid, geteuid());
  if ((status.st_mode & forbidden) != 0) {
    const mode_t bits = status.st_mode & 07777;
    return fmt::format("its permissions are {:04o} and must be at most {:04o} (chmod {:04o} FILE)", bits,
                       bits & ~forbidden, bits & ~forbidden);
  }
  return "";
}

int open_owned(const std::string& path, int flags) {
  // A pipe would block without O_NONBLOCK.
  const int fd = open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return -1;
  if (fd < 0) refuse_file(path, errno == ELOOP ? "it is a symbolic link" : std::strerror(errno));
  const std::string why = why_not_owned(fd, S_IWGRP | S_IWOTH);
  if (why.empty()) return fd;
  close(fd);
  refuse_file(path, why);
}

std::string read_owned(const std::string& path) {
  const int fd = open_owned(path, O_RDONLY);
  if (fd < 0) return "";
  std::string text(4096, '\0');
  const ssize_t bytes = read(fd, text.data(), text.size());
  close(fd);
  text.resize(bytes < 0 ? 0 : static_cast<size_t>(bytes));
  return text;
}

void create_owned(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0) refuse_file(path, std::strerror(errno));
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  close(fd);
  if (written != static_cast<ssize_t>(text.size())) refuse_file(path, std::strerror(error));
}

}  // namespace orthant

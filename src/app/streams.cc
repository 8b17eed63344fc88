#include "app/streams.h"

#include "base/errors.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace orthant {

void make_streams_safe() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) == -1 && open("/dev/null", O_RDWR) == -1) std::_Exit(kFailed);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void require_printed() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  const bool reader_left = poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
  if (!reader_left) throw Error("standard output cannot be written; is the disk full?");
}

void write_file(const std::string& option, const std::string& path, const std::string& text,
                std::ios::openmode mode) {
  errno = 0;
  std::ofstream out(path, std::ios::out | mode);
  out << text;
  if (!out.flush()) throw DataError(fmt::format("{} {}: cannot be written: {}", option, path, std::strerror(errno)));
}

}  // namespace orthant

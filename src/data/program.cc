#include "data/program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace orthant {

MemoryFile::MemoryFile(std::string_view content) : descriptor_(::memfd_create("orthant", MFD_CLOEXEC)) {
  if (descriptor_ < 0) throw DataError(fmt::format("a file in memory: {}", std::strerror(errno)));
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor_, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = errno;
      ::close(descriptor_);
      throw DataError(fmt::format("a file in memory of {} more bytes: {}", content.size(), std::strerror(error)));
    }
    content.remove_prefix(static_cast<size_t>(written));
  }
  ::lseek(descriptor_, 0, SEEK_SET);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

std::string MemoryFile::content() const {
  std::string text(static_cast<size_t>(::lseek(descriptor_, 0, SEEK_END)), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::pread(descriptor_, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    ORTHANT_CHECK(got > 0, got, errno);
    done += static_cast<size_t>(got);
  }
  return text;
}

int start_program(const std::vector<std::string>& arguments, int input, int output, int errors,
                  const std::string& directory, const std::string& hint) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_adddup2(&actions, errors, 2);
  if (!directory.empty()) posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, usual;  // A thread that blocks or ignores signals must not hand that on.
  sigemptyset(&none);
  sigemptyset(&usual);
  sigaddset(&usual, SIGPIPE);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    throw ConfigError(fmt::format("the program {} cannot be run: {}; {}", arguments[0], std::strerror(error), hint));
  return pid;
}

int wait_for_program(int pid) {
  int status = 0;
  pid_t got;
  do got = ::waitpid(pid, &status, 0);
  while (got < 0 && errno == EINTR);
  ORTHANT_CHECK(got == pid, got, pid, errno);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

ProgramResult run_program(const std::vector<std::string>& arguments, std::string_view input,
                          const std::string& directory, const std::string& hint) {
  const MemoryFile in(input), out, err;
  ProgramResult result;
  const int pid = start_program(arguments, in.descriptor(), out.descriptor(), err.descriptor(), directory, hint);
  result.exit_code = wait_for_program(pid);
  result.output = out.content();
  result.errors = err.content();
  return result;
}

}  // namespace orthant

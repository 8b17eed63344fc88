#include "data/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/errors.h"

namespace orthant {

namespace {

/// Runs in the child after fork, where only async-signal-safe calls are allowed. Executes the program, which the kernel
/// kills when its parent thread ends.
[[noreturn]] void become(char** argv, std::array<int, 3> streams, const char* directory, pid_t parent, int refusal) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent ended before prctl() took effect
  ::signal(SIGPIPE, SIG_DFL);             // the program must not inherit ignored or blocked signals
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (int i = 0; i < 3; ++i) ::dup2(streams[static_cast<size_t>(i)], i);
  if (*directory == '\0' || ::chdir(directory) == 0) ::execvp(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(refusal, &error, sizeof error);
  ::_exit(127);
}

}  // namespace

MemoryFile::MemoryFile(std::string_view content) : descriptor_(::memfd_create("orthant", MFD_CLOEXEC)) {
  if (descriptor_ < 0) throw DataError(fmt::format("cannot create a file in memory: {}", std::strerror(errno)));
  while (!content.empty()) {
    const ssize_t written = ::write(descriptor_, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = errno;
      ::close(descriptor_);
      throw DataError(
          fmt::format("cannot extend a file in memory by {} bytes: {}", content.size(), std::strerror(error)));
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
  int refusal[2];  // transmits errno if exec fails; closes on a successful exec
  if (::pipe2(refusal, O_CLOEXEC) != 0)
    throw DataError(fmt::format("cannot open a pipe to the program {}: {}", arguments[0], std::strerror(errno)));

  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid == 0) become(argv.data(), {input, output, errors}, directory.c_str(), parent, refusal[1]);
  int error = pid < 0 ? errno : 0;
  ::close(refusal[1]);
  while (pid > 0 && ::read(refusal[0], &error, sizeof error) < 0 && errno == EINTR) {
  }
  ::close(refusal[0]);
  if (error == 0) return pid;
  if (pid > 0) wait_for_program(pid);
  throw ConfigError(fmt::format("the program {} cannot be run: {}; {}", arguments[0], std::strerror(error), hint));
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

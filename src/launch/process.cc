// Reads the state of processes from /proc, and waits for their end through file descriptors of the kernel (pidfd).
#include "launch/process.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/host_name.h"
#include "base/text.h"

namespace orthant {
namespace {

struct Stat {
  char state = '?';
  int parent = 0;
  std::string start_time;
};

// Reads /proc/PID/stat: "pid (name) state ppid ...". The name may contain any characters. The start time is field 22.
std::optional<Stat> read_stat(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const size_t close = line.rfind(')');
  if (close == std::string::npos || close + 2 >= line.size()) return std::nullopt;
  const auto fields = split(line.substr(close + 2), ' ');
  if (fields.size() < 20) return std::nullopt;
  return Stat{fields[0][0], std::atoi(fields[1].c_str()), fields[19]};
}

}  // namespace

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  if (!boot.empty()) return boot;
  return host_name();
}

const std::string& this_host() {
  static const std::string host = [] {
    char name[64] = {};
    const auto length = readlink("/proc/self/ns/pid", name, sizeof name - 1);
    return fmt::format("{}/{}", boot_id(), length > 0 ? name : "?");
  }();
  return host;
}

std::string process_identity() {
  const auto stat = read_stat(getpid());
  return fmt::format("{} {} {}", this_host(), getpid(), stat ? stat->start_time : "?");
}

std::string process_identity(int pid) {
  const auto stat = read_stat(pid);
  return stat ? fmt::format("{} {} {}", this_host(), pid, stat->start_time) : "";
}

int pid_of(const std::string& identity) {
  const auto fields = split(identity, ' ');
  return fields.size() == 3 ? std::atoi(fields[1].c_str()) : 0;
}

ProcessState process_state(const std::string& identity) {
  const auto fields = split(identity, ' ');
  if (fields.size() != 3 || fields[0] != this_host() || fields[2] == "?") return ProcessState::elsewhere;
  const int pid = std::atoi(fields[1].c_str());
  const auto stat = read_stat(pid);
  // Without a free descriptor, the state of a process that lives cannot be read.
  if (!stat && !(kill(pid, 0) != 0 && errno == ESRCH)) return ProcessState::running;
  if (!stat || stat->start_time != fields[2] || stat->state == 'Z' || stat->state == 'X') return ProcessState::gone;
  return stat->state == 'T' || stat->state == 't' ? ProcessState::stopped : ProcessState::running;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string random_nonce() {
  std::random_device entropy;
  return fmt::format("{:08x}{:08x}", entropy(), entropy());
}

ProcessWatcher::ProcessWatcher() : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (wake_fd_ < 0) throw CommError(fmt::format("cannot create an event: {}", std::strerror(errno)));
}

ProcessWatcher::~ProcessWatcher() {
  close(wake_fd_);
  for (const auto& [identity, fd] : watched_) {
    if (fd >= 0) close(fd);
  }
}

void ProcessWatcher::watch(const std::string& identity) {
  const auto [entry, fresh] = watched_.emplace(identity, -1);
  if (!fresh || process_state(identity) == ProcessState::elsewhere) return;
  // The pid may belong to another process by now. process_state() compares start times and therefore detects that.
  entry->second = static_cast<int>(syscall(SYS_pidfd_open, pid_of(identity), 0));
}

bool ProcessWatcher::wait(double seconds) {
  std::vector<pollfd> fds = {{wake_fd_, POLLIN, 0}};
  std::vector<int*> positions;
  for (auto& [identity, fd] : watched_) {
    if (fd < 0) continue;
    fds.push_back({fd, POLLIN, 0});
    positions.push_back(&fd);
  }
  if (poll(fds.data(), fds.size(), static_cast<int>(seconds * 1000) + 1) <= 0) return false;
  uint64_t count = 0;
  (void)!read(wake_fd_, &count, sizeof count);
  bool any = false;
  for (size_t i = 0; i < positions.size(); ++i) {
    if (fds[i + 1].revents == 0) continue;
    close(std::exchange(*positions[i], -1));
    any = true;
  }
  return any;
}

void ProcessWatcher::wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof one);
}

std::string parent_identity() {
  const auto stat = read_stat(getppid());
  return fmt::format("{}-{}", getppid(), stat ? stat->start_time : "0");
}

std::vector<std::vector<std::string>> ancestor_commands() {
  constexpr size_t kMost = 100;  // deeper than any tree of launchers
  std::vector<std::vector<std::string>> commands;
  for (int pid = getppid(); pid > 0 && commands.size() < kMost;) {
    std::ifstream file(fmt::format("/proc/{}/cmdline", pid));
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.ends_with('\0')) text.pop_back();
    commands.push_back(split(text, '\0'));
    const auto stat = read_stat(pid);
    pid = stat ? stat->parent : 0;
  }
  return commands;
}

void die_with_parent() {
  const char* parent = std::getenv("ORTHANT_PARENT_PID");
  if (parent == nullptr) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(parent)) _exit(1);  // the parent died before the kernel recorded the request
}

}  // namespace orthant

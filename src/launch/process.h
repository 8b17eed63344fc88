// Processes of this machine: their identity, and whether they still run. This distinguishes a dead rank from a slow
// one.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace orthant {

/// State of a process. elsewhere: it runs on another machine or in another container, so its state is unknown.
enum class ProcessState { elsewhere, running, stopped, gone };

/// Identifies the host of this process: its boot and its namespace of process ids. It contains no space. Two hosts have
/// the same one only if they state no boot id and have the same name.
const std::string& this_host();

/// Identifies this process for others: host, pid and start time. The start time distinguishes a later process with the
/// same pid.
std::string process_identity();
/// Identifies another process of this machine; empty if no process has this pid.
std::string process_identity(int pid);
/// State of the process with this identity.
ProcessState process_state(const std::string& identity);
/// The pid of the identity, for messages; 0 if the identity is malformed.
int pid_of(const std::string& identity);

/// Name of a signal, for example "SIGTERM".
std::string signal_name(int signal);

/// 16 random hexadecimal digits, which identify the process that draws them.
std::string random_nonce();

/// Waits until one of the watched processes of this machine ends. The kernel reports the end, so nobody polls. Holds
/// one file descriptor for each process that it watches.
class ProcessWatcher {
 public:
  ProcessWatcher();
  ~ProcessWatcher();
  ProcessWatcher(const ProcessWatcher&) = delete;
  ProcessWatcher& operator=(const ProcessWatcher&) = delete;

  /// Watches this process too: its end ends wait(). A process on another machine is ignored, and so is one for which no
  /// file descriptor is left. For the latter, process_state() still works.
  void watch(const std::string& identity);
  /// Blocks until a watched process ends, and returns true; each end is reported once. False after `seconds`, or at
  /// wake().
  bool wait(double seconds);
  /// May be called from any thread: wait() returns, now or at its next call.
  void wake();

 private:
  int wake_fd_;
  /// File descriptor by identity; -1 if its end was reported or it cannot be watched.
  std::map<std::string, int> watched_;
};

/// Returns a text that is equal in all processes of a host until the host starts again, and differs on other hosts. On
/// a system that does not state one, it is the name of the host.
std::string boot_id();

/// Identifies the parent of this process. It is equal for all ranks that one local launcher started, and differs for
/// every other run.
std::string parent_identity();

/// The command lines of the ancestors of this process in this container, nearest first.
std::vector<std::vector<std::string>> ancestor_commands();

/// Asks the kernel to kill this process when its launcher dies. It affects only ranks that our own launcher spawned.
/// Call it at the start of main, in the main thread.
void die_with_parent();

}  // namespace orthant

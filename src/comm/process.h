// Whether another process of this machine still lives: the fact that tells a dead rank from a slow one.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace orthant {

enum class Life { elsewhere, running, stopped, gone };

/// Names this process for others: machine (this boot, this pid namespace), pid, and start time, so that a pid used
/// again is not taken for it.
std::string process_identity();
/// The same of another process of this machine; empty if there is none with this pid.
std::string process_identity(int pid);
/// What became of the process so named; `elsewhere` when it runs on another machine (or in another container).
Life life_of(const std::string& identity);
/// Its pid, for messages.
int pid_of(const std::string& identity);

/// 16 random hexadecimal digits, which identify the process that draws them.
std::string random_nonce();

/// Sleeps until another process of this machine ends: the kernel tells, so nobody has to look.
class Deaths {
 public:
  Deaths();
  ~Deaths();
  Deaths(const Deaths&) = delete;
  Deaths& operator=(const Deaths&) = delete;

  /// From now on the end of the process so named ends wait(). One that runs elsewhere, or for which no file descriptor
  /// is left, is ignored: life_of() still tells.
  void expect(const std::string& identity);
  /// True if one of them has ended; each is told once. False after so many seconds, or at wake().
  bool wait(double seconds);
  /// From any thread: wait() returns, now or when it is next called.
  void wake();

 private:
  int wake_fd_;
  std::map<std::string, int> watched_;  // -1: told, or cannot be watched
};

/// Names the process that started this one: the same for all ranks that one local launcher started, and for no other
/// run.
std::string parent_key();

/// The command lines of the ancestors of this process in this container, nearest first.
std::vector<std::vector<std::string>> ancestor_commands();

/// Asks the kernel to kill this process when the one that launched it dies. For ranks that our launcher spawned; it
/// does nothing elsewhere. To be called at the start of main, in the main thread.
void die_with_parent();

}  // namespace orthant

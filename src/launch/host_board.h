// HostBoard: memory that the processes of a run on one host share. Each rank shows there that it lives and which
// activity it is in. Whoever learns of the run's failure posts it there. Ranks of a host therefore watch each other
// without the store, and one of them, the leader, asks the store for all.
//
// The memory is an anonymous file (memfd) of the rank, or the launcher, that came first. The others open it through
// /proc/PID/fd, which the kernel allows to the same user only. It disappears with the last process that uses it.
//
// Growth with P ranks, of which R are on this host: joining costs a rank one store request, and the first of a host
// one more to enter. Entering and finding a rank costs O(R) time, everything else O(1). A rank uses 1 KiB of
// the memory.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "launch/process.h"
#include "launch/store.h"

namespace orthant {

class HostBoard {
 public:
  /// Opens the board of `host` for a run of world_size ranks, and creates it if this process is the first one. `store`
  /// must be the run's own. A process that may not open the board of the first one gets its own, as if it were alone on
  /// a host.
  static std::shared_ptr<HostBoard> join(const Store& store, int world_size, const std::string& host = this_host());
  ~HostBoard();
  HostBoard(const HostBoard&) = delete;
  HostBoard& operator=(const HostBoard&) = delete;

  /// Number of this host in the run, which is the rank that entered first; -1 before any rank has entered.
  int host() const;

  /// Key of the store for the heartbeat of a host.
  static std::string heartbeat_key(int host);

  /// Begins a Watch of this rank, whose process has this identity. The first rank of a host posts a heartbeat that
  /// names it. Returns the rank's position on this host; later ones return the same.
  int enter(const Store& store, int rank, const std::string& identity);
  /// Ends a Watch of the rank in that position, which then leads no more, unless it is under another Watch. Returns
  /// true if no rank of this host is under a Watch any more.
  bool leave(int position);
  /// Number of ranks that have entered so far. Their positions are 0 to num_ranks() - 1.
  int num_ranks() const;
  int rank(int position) const;
  /// Position of the rank; -1 if it has not entered.
  int find(int rank) const;
  std::string identity(int position) const;
  /// Whether the rank is under a Watch, so that the end of its process is a failure of the run.
  bool is_watched(int position) const;

  /// Shows that the rank lives: changes the value of heartbeat().
  void beat(int position);
  int64_t heartbeat(int position) const;
  /// Sets the activity of the rank, of which at most 439 bytes are kept. Readers see the last complete text, even if
  /// its writer was killed.
  void set_activity(int position, const std::string& activity);
  std::string activity(int position) const;
  /// Whether the rank in this position leads the host. If no rank does, it becomes the leader.
  bool lead(int position);

  /// Posts that the run has failed, and why. Returns true for the first call on this host, whose message holds.
  bool post_failure(const std::string& message);
  /// The message posted, of which at most 3,999 bytes are kept; empty while the run has not failed.
  std::optional<std::string> failure() const;
  /// Asks the leader to look at all hosts, because an operation of a rank of this host has failed.
  void set_suspicious();
  bool is_suspicious() const;

 private:
  struct Memory;
  struct Slot;

  HostBoard(int fd, Memory* memory, size_t bytes, std::string address);
  static std::unique_ptr<HostBoard> create(int world_size);
  static std::unique_ptr<HostBoard> open(const std::string& address, int world_size);
  Slot& slot(int position) const;

  const int fd_;  // stays open, because other processes open it
  Memory* const memory_;
  const size_t bytes_;
  const std::string address_;
  std::mutex mutex_;  // of set_activity(): the memory has one writer
};

}  // namespace orthant

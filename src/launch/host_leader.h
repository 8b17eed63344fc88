// HostLeader: asks the store for all ranks of a host. It reads the failure record, posts the heartbeat of the host, and
// reads that of the host before it. The hosts form a ring, so of any failed hosts one has a watcher.
//
// Growth with H hosts: an inquiry costs one store request, and three more if there are several hosts. While a rank of
// this host is suspicious, it reads H heartbeats.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/host_board.h"
#include "launch/store.h"

namespace orthant {

/// A heartbeat that is missed once or twice proves nothing.
inline constexpr double kMissedBeats = 3;

/// The latest heartbeat of a rank or a host, and how long it has not changed.
class Heartbeat {
 public:
  void see(int64_t beat, double elapsed_s);
  double unchanged_s() const { return unchanged_s_; }

 private:
  int64_t beat_ = -1;
  double unchanged_s_ = 0;
};

/// A silence to warn of: once when it begins, and once when it ends.
class SilenceWarning {
 public:
  /// The text of `describe` for the new state if that differs from the last one; else empty.
  std::string change(bool is_silent, const std::function<std::string(bool is_silent)>& describe);

 private:
  bool is_silent_ = false;
};

/// An activity that a rank posted, safe to print and cut to 300 bytes.
std::string readable_activity(const std::string& posted);
/// " (last reported activity: ...)"; empty if the activity is.
std::string during(const std::string& activity);

/// Time limits for the heartbeats of ranks and hosts, in seconds.
struct HeartbeatLimits {
  /// How often a rank shows its heartbeat on the board of its host, and a leader posts that of its host.
  double period_s = 0.5;
  /// A rank or a host has failed if its heartbeat has not changed for this long and for three periods. It is long
  /// because a machine may be slow and recover. A process that is gone is detected at once.
  double timeout_s = 30;
  /// The same limit if there is a second sign of failure: the process of the rank is stopped, or an operation with
  /// another host has failed. This detects a host that died, because the kernel closes its connections.
  double suspected_timeout_s = 3;
  /// A rank, a host or a store that has been silent for this long is worth a warning.
  double warn_after_s = 3.5;
};

/// The result of an inquiry.
struct Answer {
  std::optional<std::string> posted = {};  // the failure record
  std::string problem = {};                // the failure of another host; empty if there is none
  std::vector<std::string> warnings = {};  // of other hosts that are silent, or are so no more
};

class HostLeader {
 public:
  /// `store` must be the run's own. `hosts` are the numbers of all hosts of the run, in the order of the ring. Without
  /// a board it reads the failure record only.
  HostLeader(const Store& store, std::shared_ptr<HostBoard> board, std::vector<int> hosts, int rank,
             const HeartbeatLimits& limits);

  /// Asks the store over a connection of its own, elapsed_s after the last inquiry.
  Answer inquire(double elapsed_s);
  /// Posts that no rank of this host is under a Watch any more.
  static void leave(const Store& store, const HostBoard& board);

 private:
  struct Host {
    Heartbeat heartbeat;
    std::string name = "another host", activity = {};  // for messages
    bool has_posted = false, left = false;
    SilenceWarning warning = {};
  };

  Answer look_at_hosts(double elapsed_s);
  void beat();
  std::vector<int> watched_hosts() const;
  void read(int host, const std::string& posted, double elapsed_s);
  std::string describe_failure(const Host& host) const;
  std::string warning_of(Host& host) const;

  const Store store_;
  const std::shared_ptr<HostBoard> board_;
  const std::vector<int> ring_;
  const int rank_;
  const HeartbeatLimits limits_;
  Store connection_;  // from the first inquiry on
  std::map<int, Host> hosts_;
  double since_beat_s_;
};

}  // namespace orthant

// Watch: how all ranks learn, within seconds, that one of them failed. A small thread of each rank posts a heartbeat
// on the store, reads the others', and reads the one record on which a failing rank (or the launcher) says what
// happened.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/process.h"
#include "comm/store.h"

namespace orthant {

struct WatchOptions {
  double period_s = 0.5;
  /// How often this rank's own heartbeat is posted.
  double beat_s = 0.5;
  /// A rank whose process cannot be looked at (another machine) or still exists counts as failed when its heartbeat has
  /// stood still this long, and for three beats: a machine may be slow for long and still come back. A process of this
  /// machine that is gone is noticed at once.
  double silence_s = 30;
  /// The same where there are two signs of one cause: its process is stopped, as this machine can see, or an operation
  /// of ours has failed. A process that died on another machine is noticed so: the kernel closes its connections.
  double suspicion_s = 3;
  /// False for threads of one process: they live and die together, only the record matters.
  bool heartbeats = true;
  /// Called once, on the watch's thread, when the run has failed elsewhere (or here, and this rank has not left after
  /// `leave_s`). The second argument is true for the one rank that should tell the user.
  std::function<void(const std::string& message, bool speak)> on_failure;
  double leave_s = 5;
};

/// Another rank has failed and has reported why: the rank that catches this error ends without a message of its own.
struct PeerFailed : CommError {
  PeerFailed() : CommError("another rank has failed") {}
};

/// Posts the record that stops a run. True for the first who does so: the one to tell the user. The store is the
/// run's own.
bool post_failure(const Store& store, const std::string& message);
/// Whether a failure has been posted.
bool has_failed(const Store& store);
/// What a rank last said it was doing, as " (last heard at: ...)", or nothing.
std::string last_activity(const Store& store, int rank);

class Watch {
 public:
  /// Returns when all ranks have come; CommError names those that have not within timeout_s. Heartbeats stand under
  /// `name`; the record of a failure is the store's own, one for the whole run.
  Watch(const Store& store, const std::string& name, int rank, int world_size, double timeout_s, WatchOptions options);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Stops watching; with a goodbye the others know that this rank has ended its run and not died.
  void leave(bool goodbye);
  /// For the rank whose process serves the store: waits up to timeout_s until all others have left.
  void wait_for_others(double timeout_s);

  /// Waits for what another rank posts on a store; CommError when it does not come, or the run has failed meanwhile.
  std::string hear(const Store& store, const std::string& key, int from, double timeout_s) const;

  /// What this rank is doing, shown to others when it is missed.
  void set_activity(std::string activity);
  std::string activity() const;
  /// Says that this rank fails, and why. True if it is the first, and so the one to tell the user; the answer to a
  /// second call is the first one's.
  bool abort(const std::string& message);
  /// abort(), and on_failure at once: for a thread that cannot throw to the main one.
  void abort_and_end(const std::string& message);
  /// What the run died of, if it has.
  std::optional<std::string> failure() const;
  /// For an operation that failed: waits up to patience_s for the cause to be known. Without one, what the others do.
  std::string blame(double patience_s);

 private:
  struct Peer {
    std::string identity, activity, beat;
    double still_s = 0;
    int gone_ticks = 0;
    bool left = false;
  };

  void run();
  void tick(double elapsed_s);
  void beat();
  void look_at_peers(double elapsed_s);
  std::string what_is_wrong(int rank, Peer& peer) const;
  std::string the_dead() const;
  void fail(const std::string& message, bool speak);
  std::string others() const;

  const Store record_, store_;
  const int rank_, world_size_;
  const WatchOptions options_;
  const std::string identity_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string activity_;
  std::optional<std::string> failure_;
  std::optional<bool> spoke_;
  std::map<int, Peer> peers_;
  Deaths deaths_;  // waited for on the watch's thread
  bool suspicious_ = false, stop_ = false, called_ = false;
  int64_t beats_ = 0;
  double since_beat_s_ = 0;
  std::thread thread_;
};

}  // namespace orthant

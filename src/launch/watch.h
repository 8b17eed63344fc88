// Watch: detects within seconds that a rank of the run has failed, and reports it to all ranks. A small thread of each
// rank posts a heartbeat in the store, reads that of the rank before it, and reads the failure record. A failing rank,
// or the launcher, writes the cause of the failure into that record. The ranks form a ring, so of any failed ranks one
// has a watcher that has not failed. Only after an operation of a rank has failed does it read all heartbeats.
//
// Growth with P ranks: construction, and every period of a healthy run, cost each rank a constant number of store
// requests and a constant amount of work. A rank whose operation failed reads P heartbeats every period.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/process.h"
#include "launch/roll_call.h"
#include "launch/store.h"

namespace orthant {

struct WatchOptions {
  /// How often the watch reads the record and the heartbeats, in seconds.
  double period_s = 0.5;
  /// How often this rank posts its own heartbeat, in seconds.
  double beat_s = 0.5;
  /// A rank has failed if its heartbeat has not changed for this long and for three periods of beat_s. This applies to
  /// processes on other machines, and to processes that still exist here. It is long because a machine may be slow and
  /// recover. A process of this machine that is gone is detected at once.
  double silence_s = 30;
  /// The same limit if a second sign points to the rank: its process is stopped, as seen on this machine, or an
  /// operation of this rank has failed. This detects a process that died on another machine, because the kernel closes
  /// its connections.
  double suspicion_s = 3;
  /// False for threads of one process. They live and die together, so only the failure record matters.
  bool heartbeats = true;
  /// Called once, on the watch's thread, when the run has failed elsewhere. It is also called if this rank has failed
  /// and has not left after `leave_s`. `must_report` is true on the one rank that must report to the user.
  std::function<void(const std::string& message, bool must_report)> on_failure;
  double leave_s = 5;
  /// Called every period on the watch's thread, with the time since the last call and the watch's own store. It may
  /// throw CommError.
  std::function<void(double elapsed_s, const Store& store)> on_tick = {};
  /// Called with a warning that names a rank without a heartbeat for warn_s, long before silence_s ends the run, and
  /// again when its heartbeats are back. Never called if heartbeats are rarer than that.
  std::function<void(const std::string& warning)> on_warning = {};
  double warn_s = 3.5;
};

/// Another rank has failed and has reported why: the rank that catches this error ends without a message of its own.
struct PeerFailed : CommError {
  PeerFailed() : CommError("another rank has failed") {}
};

/// Posts the record that stops a run. `store` must be the run's own. True for the first caller, who must report to the
/// user.
bool post_failure(const Store& store, const std::string& message);
/// Whether a failure has been posted.
bool has_failed(const Store& store);
/// A rank's last heartbeat. The number changes with each one, so that of a silent rank stays.
struct Heartbeat {
  std::string number, activity;
};
/// The last heartbeats of these ranks, from the own store of their Watches.
std::vector<Heartbeat> read_heartbeats(const Store& store, const std::vector<int>& ranks);
/// The last activity that a rank posted, as " (last reported activity: ...)"; empty if unknown.
std::string last_activity(const Store& store, int rank);

class Watch {
 public:
  /// Returns when all ranks have arrived. Throws CommError with the missing ranks after timeout_s. Heartbeats are
  /// stored under `name`; the failure record is stored once for the whole run.
  Watch(const Store& store, const std::string& name, int rank, int world_size, double timeout_s, WatchOptions options);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// Stops watching. With `goodbye`, the others learn that this rank has ended its run and has not died.
  void leave(bool goodbye);
  /// For the rank whose process serves the store: waits up to timeout_s until all other ranks have left.
  void wait_for_others(double timeout_s);

  /// A roll call of the ranks of this Watch, which ends with CommError if the run fails meanwhile.
  RollCall roll_call(const Store& store, double timeout_s) const;

  /// Sets this rank's activity, which other ranks report when it fails.
  void set_activity(std::string activity);
  std::string activity() const;
  /// Reports that this rank fails, and why. True if it is the first to fail, and must therefore report to the user.
  /// Later calls return the same answer.
  bool abort(const std::string& message);
  /// Calls abort() and then on_failure at once. For threads that cannot throw to the main thread.
  void abort_and_end(const std::string& message);
  /// Number of periods in which the store has answered so far. May be called from any thread.
  int64_t answered_periods() const { return answered_periods_; }
  /// The cause of the run's failure; empty while it has not failed.
  std::optional<std::string> failure() const;
  /// Called after an operation failed: waits up to patience_s for the cause and returns it. Returns the activities of
  /// the other ranks if it finds no cause.
  std::string wait_for_cause(double patience_s);

 private:
  struct Peer {
    std::string identity, activity, beat;
    double still_s = 0;
    int gone_ticks = 0;
    bool left = false, warned = false;
  };

  void run();
  void tick(double elapsed_s);
  void beat();
  std::vector<int> watched_ranks() const;
  void look_at_peers(double elapsed_s);
  std::string describe_failure(int rank, Peer& peer) const;
  std::string describe_silence(int rank, Peer& peer) const;
  std::string find_dead_rank() const;
  void fail(const std::string& message, bool must_report);
  std::string others() const;

  const Store record_, store_;
  const int rank_, world_size_;
  const WatchOptions options_;
  const std::string identity_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string activity_;
  std::optional<std::string> failure_;
  std::optional<bool> must_report_;
  std::map<int, Peer> peers_;
  ProcessWatcher processes_;  // used on the watch's thread; only wake() is called from others
  bool suspicious_ = false, stop_ = false, called_ = false;
  int64_t beats_ = 0;
  std::atomic<int64_t> answered_periods_ = 0;
  double since_beat_s_ = 0;
  std::thread thread_;
};

}  // namespace orthant

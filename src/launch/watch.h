// Watch: detects within seconds that a rank of the run has failed, and reports it to all ranks. A small thread of each
// rank shows on the board of its host that the rank lives, and looks at the rank before it there. The ranks of a host
// form a ring: unless all of them fail, a rank that lives looks at one that has failed.
//
// One rank of each host, its leader, asks the store for all: it posts the heartbeat of the host, reads that of the host
// before it, and reads the failure record. A failing rank, or the launcher, writes the cause into that record and onto
// the board of its host, where the leader of every other host posts it too. If the leader ends its run, another rank
// becomes the leader. A leader reads the heartbeats of all hosts only after an operation on its own host has failed.
//
// Growth with P ranks on H hosts: construction costs each rank a constant number of store requests, of which one reads
// P numbers on rank 0, and leave() costs at most three. A healthy run costs each host about 8 store requests a second,
// and each rank a constant amount of work. After an operation of a rank has failed, its host reads H heartbeats every
// period.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/failure_record.h"
#include "launch/host_board.h"
#include "launch/host_leader.h"
#include "launch/process.h"
#include "launch/roll_call.h"
#include "launch/store.h"

namespace orthant {

struct WatchOptions {
  /// How often the leader of a host reads the record, in seconds.
  double period_s = 0.5;
  /// How often this rank reads the board of its host, in seconds; at least once in period_s.
  double board_period_s = 0.1;
  HeartbeatLimits heartbeat = {};
  /// Memory that the ranks of this host share. Null for threads of one process: they live and die together, so only the
  /// failure record matters, and each of them reads it.
  std::shared_ptr<HostBoard> board = nullptr;
  /// Called once, on the watch's thread, when the run has failed elsewhere. It is also called if this rank has failed
  /// and has not left after `leave_s`. `must_report` is true on the one rank that must report to the user.
  std::function<void(const std::string& message, bool must_report)> on_failure;
  double leave_s = 5;
  /// Called at every look on the watch's thread, with the time since the last call in seconds.
  std::function<void(double elapsed_s)> on_tick = {};
  /// Called on the watch's thread with a warning that names a rank, a host or a store that has been silent for
  /// heartbeat.warn_after_s, long before heartbeat.timeout_s ends the run, and again when it is silent no more.
  std::function<void(const std::string& warning)> on_warning = {};
};

/// The last activity that a rank of this host showed, as " (last reported activity: ...)"; empty if unknown.
std::string last_activity(const HostBoard& board, int rank);

class Watch {
 public:
  /// Returns when all ranks have arrived. Throws CommError with the missing ranks after timeout_s. They meet under
  /// `name`; the heartbeats and the failure record are stored once for the whole run. `store` must be the run's own,
  /// and is used by the thread that constructs and leaves the Watch.
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
  /// The cause of the run's failure; empty while it has not failed.
  std::optional<std::string> failure() const;
  /// Called after the connection to a rank is lost. Until the cause is known, a host without heartbeats fails after
  /// suspected_timeout_s instead of timeout_s.
  void suspect();
  /// Called after an operation failed: calls suspect(), waits up to timeout_s for the cause and returns it. Returns
  /// the activities of the other ranks if it finds no cause.
  std::string wait_for_cause(double timeout_s);

 private:
  struct Claim {
    std::string message;
    bool is_first;
  };

  void run();
  void tick(double elapsed_s);
  void look_at_previous_rank(double elapsed_s);
  void ask_store();
  void handle(const Answer& answer);
  std::string describe_failure(double elapsed_s);
  void warn_of(const std::string& change);
  std::string find_dead_rank() const;
  bool must_report() const;
  Claim post(const std::string& message) const;
  std::optional<Claim> claim_report(const std::string& message) const;
  void report(const std::string& message);
  void report_lost_store(const std::string& reason);
  void fail(const std::string& message, bool must_report);
  std::string others() const;

  const Store record_, store_;
  const int rank_, world_size_;
  const WatchOptions options_;
  const std::shared_ptr<HostBoard> board_;
  const int position_;      // of this rank on the board
  std::vector<int> hosts_;  // numbers of all hosts of the run, in ascending order

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string activity_;
  std::optional<std::string> failure_;
  std::optional<bool> must_report_;
  ProcessWatcher processes_;  // used on the watch's thread; only wake() is called from others
  bool is_posting_ = false;   // abort() is finding out who must report
  bool stop_ = false;
  std::atomic<bool> called_ = false;

  // Used on the watch's thread only.
  std::shared_ptr<HostLeader> leader_;  // once this rank has led
  std::future<Answer> answer_;          // of the store, while a request is under way
  int previous_ = -1;                   // position of the rank that this one watches; -1: there is none
  Heartbeat previous_heartbeat_{};
  bool has_ended_ = false;  // its process may have ended
  double gone_s_ = 0;       // how long that process has been gone
  SilenceWarning previous_is_silent_, store_is_silent_;
  double since_beat_s_ = 0, since_asked_s_ = 0;
  std::thread thread_;
};

}  // namespace orthant

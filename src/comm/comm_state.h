// CommState: the shared state of a Comm, its channels and its Works: open groups, counters, watch and engine. It is the
// one place where the message of a failed operation is written.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "comm/comm.h"
#include "comm/engine.h"
#include "comm/hang_watch.h"
#include "launch/watch.h"

namespace orthant {

/// A group that operations can run over, with its n ranks in order of position. `group` is null if n = 1.
struct OpenGroup {
  std::string signature;
  std::string name;  // the signature, and the device or channel if it is not the default
  std::vector<int> ranks;
  int position = 0;
  int64_t collectives = 0;                           // started so far
  std::map<int, int64_t> sends = {}, receives = {};  // started so far, by position of the other side
  std::unique_ptr<Group> group;
  bool over_nccl = false;
  /// Over NCCL: groups of two ranks, sender and receiver, for send() and recv(); by positions in this group.
  std::map<std::pair<int, int>, std::unique_ptr<Group>> directions = {};

  int size() const { return static_cast<int>(ranks.size()); }
};

class CommState : public std::enable_shared_from_this<CommState> {
 public:
  CommState(Mesh mesh, int rank, Rendezvous rendezvous, CommOptions options);
  /// Leaves the run and closes the groups. After a failure, or while an exception unwinds (`unwinding`), the groups and
  /// the engine are leaked on purpose: closing one waits for its operations, which may wait for a dead rank. A clean
  /// close costs at least one store request per rank of the mesh.
  void close(bool unwinding);

  /// Returns the group over the axes and opens it at the first call: our own collectives for a CPU device, NCCL for a
  /// CUDA device, unless its tensors travel through host memory. Groups over NCCL and over the CPU may be open for the
  /// same axes. Opening a CPU group needs no communication. Opening an NCCL group waits for all members and costs each
  /// rank a constant number of store requests, in addition to those of NCCL.
  OpenGroup& open(const Axes& axes, at::Device device = at::kCPU, int channel = 0);
  /// See Comm::prepare_messages().
  void open_directions(OpenGroup& group, at::Device device, const std::set<std::pair<int, int>>& directions);
  /// Starts an operation over a group of at least two ranks and counts `bytes` for it.
  Work start(const GroupCall& operation, const Moved& bytes,
             const std::function<std::unique_ptr<Pending>(Group&)>& issue);
  void wait(Work& work);
  void keep(std::unique_ptr<Pending> dropped);
  void set_activity(std::string activity);
  RollCall open_roll_call(const std::string& awaited);
  std::vector<StartedOperation> last_operations() const;

  const Mesh mesh;
  const int rank;
  TrafficTable traffic;
  double exposed_wait_s = 0;
  std::unique_ptr<Watch> watch;
  /// Transport and progress of CPU messages; null if there is only one rank.
  std::unique_ptr<Engine> engine;

 private:
  std::unique_ptr<Group> open_cpu(const OpenGroup& group, const Axes& axes, int channel);
  std::unique_ptr<Group> open_nccl(const OpenGroup& group, const std::string& name, at::Device device,
                                   std::vector<int> members, int position);
  bool finish();
  void watch_for_hangs(WatchOptions& watching);
  void warn(const std::string& warning);
  RankStatus status();
  std::string find_cause(const GroupCall& operation, const std::string& reason);
  std::string picture();
  std::string describe_last_operations() const;
  [[noreturn]] void fail(const GroupCall& operation, const std::exception& error);
  void cancel_wait();
  void on_failure(const std::string& message, bool must_report);
  /// How long a failed operation waits until the watch has found the cause, in seconds.
  double cause_timeout_s() const { return rendezvous_.in_process ? 1 : 8; }
  void lost(const std::string& signature, const std::string& reason);

  // The same without its texts, because each operation is recorded.
  struct RecordedOperation {
    const OpenGroup* group;
    const char* kind;
    int64_t bytes;
    int peer;
  };
  void record(const GroupCall& operation);
  void count(GroupCall& operation);

  Rendezvous rendezvous_;
  const CommOptions options_;
  Store store_;
  Store roll_call_store_;  // a connection of its own, from the first roll call on
  int roll_calls_ = 0;     // opened so far
  std::map<std::string, OpenGroup> groups_;
  std::vector<std::unique_ptr<Pending>> dropped_;
  /// Guards the members up to activity_ and insertions into groups_, because the watch reads the state of this rank,
  /// and cancels a wait, from its own thread.
  std::mutex waiting_mutex_;
  Pending* waiting_ = nullptr;
  std::optional<GroupCall> blocked_in_;
  std::string activity_;
  std::atomic<int64_t> progress_ = 0;  // number of changes of blocked_in_ and activity_
  std::optional<HangWatch> hangs_;
  std::atomic<bool> watches_engine_ = false;  // the watch may use `engine`
  std::vector<RecordedOperation> recorded_;  // a ring: the next one replaces that at num_recorded_ % its size
  size_t num_recorded_ = 0;
  bool fails_first_ = false;  // no operation of another rank has failed before one of this rank
};

}  // namespace orthant

// What stands behind Comm and its Works: open groups, counters, the watch, and the one place that explains a failure.
#pragma once

#include <atomic>
#include <mutex>

#include "comm/comm.h"
#include "comm/engine.h"
#include "comm/watch.h"

namespace orthant {

/// A group that operations can run over; `group` is null when it has one rank only.
struct OpenGroup {
  std::string label;
  std::vector<int> ranks;
  int position = 0;
  std::unique_ptr<Group> group;

  int size() const { return static_cast<int>(ranks.size()); }
};

class CommState : public std::enable_shared_from_this<CommState> {
 public:
  CommState(Mesh mesh, int rank, Rendezvous rendezvous, CommOptions options);
  /// Leaves the run and closes the groups. After a failure (or when an exception passes: `unwinding`) they are
  /// abandoned: closing one waits for its operations, which may wait for the dead.
  void close(bool unwinding);

  /// The group over the axes: our own on messages, or for a CUDA device NCCL's, which stands beside it.
  OpenGroup& open(const Axes& axes, at::Device device = at::kCPU, int lane = 0);
  /// Starts an operation over a group of at least two ranks and counts it.
  Work start(const Operation& operation, int64_t sent_bytes,
             const std::function<std::unique_ptr<Pending>(Group&)>& issue);
  void wait(Work& work);
  void keep(std::unique_ptr<Pending> dropped);
  void set_activity(std::string activity);

  const Mesh mesh;
  const int rank;
  TrafficTable traffic;
  double exposed_wait_s = 0;
  std::unique_ptr<Watch> watch;
  /// Carries the messages of CPU tensors; null in a world of one rank.
  std::unique_ptr<Engine> engine;

 private:
  std::unique_ptr<Group> open_cpu(const OpenGroup& group, const Axes& axes, int lane);
  std::unique_ptr<Group> open_cuda(const OpenGroup& group, const std::string& name, at::Device device);
  void meet(const OpenGroup& group, const Store& store);
  bool finish();
  [[noreturn]] void fail(const Operation& operation, const std::string& reason);
  void cancel_wait();
  void on_failure(const std::string& message, bool speak);
  /// How long a failed operation waits for the others to say what the cause is.
  double patience_s() const { return rendezvous_.in_process ? 1 : 8; }
  void lost(const std::string& label, const std::string& reason);

  Rendezvous rendezvous_;
  const CommOptions options_;
  Store store_;
  std::string activity_;
  std::map<std::string, OpenGroup> groups_;
  std::vector<std::unique_ptr<Pending>> dropped_;
  std::mutex waiting_mutex_;  // the watch breaks off a wait from its own thread
  Pending* waiting_ = nullptr;
};

}  // namespace orthant

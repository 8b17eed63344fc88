// Options of a Comm.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/gpu.h"

namespace orthant {

/// True if the environment variable ORTHANT_IN_ORDER is 1. Throws ConfigError if it is neither 0 nor 1.
bool in_order_by_environment();

struct CommOptions {
  /// Transport of CPU tensors: "ucx", "gloo", or "auto", which takes UCX if all ranks have it and Gloo otherwise.
  std::string transport = "auto";
  /// If true, tensors of every device are copied to host memory and travel from there (staged_group.h). One group then
  /// serves tensors of GPUs and of CPUs. If false, CUDA tensors travel over NCCL, which needs a GPU for each rank.
  bool through_host_memory = false;
  /// The GPU that this rank uses over NCCL. No two ranks may use the same. Rank 0 warns if the models differ.
  Gpu gpu;
  /// Whether CPU groups carry out their operations in the order posted, as NCCL does (message_group.h), so that a run
  /// on CPUs finds the orders that deadlock on GPUs. The environment variable ORTHANT_IN_ORDER=1 requests it for tests.
  bool in_order = in_order_by_environment();
  /// An operation that takes longer has failed. The value is large because a rank may be busy saving a checkpoint.
  /// Ranks that died or fell silent are detected much earlier (heartbeat_timeout_s).
  double timeout_s = 300;
  /// How long ranks wait for each other while they connect.
  double connect_timeout_s = 60;
  /// A rank or host without a heartbeat for this long has failed, e.g. because it was cut off. A process of this
  /// machine that is stopped or gone is detected within seconds.
  double heartbeat_timeout_s = 30;
  /// Called once, on another thread, when the run has failed elsewhere and this rank's main thread may be blocked.
  /// `must_report` is true on the one rank that must report to the user. The default prints the message on that rank
  /// and calls `_exit(1)` without flushing. If ranks are threads, the default cancels the current wait instead.
  std::function<void(const std::string& message, bool must_report)> on_failure;
  /// If no rank makes progress for this long, rank 0 warns soon after, with a picture of who waits for whom.
  double hang_s = 5;
  /// Called with a warning on another thread: about a hang, or a silent rank. The default prints it on stderr. If ranks
  /// are threads, the default is to look for neither.
  std::function<void(const std::string& warning)> on_warning = {};
  /// How many of the last operations last_operations() returns.
  size_t kept_operations = 32;
};

}  // namespace orthant

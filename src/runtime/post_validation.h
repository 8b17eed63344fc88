// Runtime half of post-validation (parallel/pipeline/post_validation_plan.h). In STEP, accumulate() adds this rank's
// statistics to those of earlier pipeline ranks. In FINALIZE of the next row, receive_total() returns the total.
// OptimizerBackup undoes an update that the total forbids. The protocol is in pseudo-code in runtime/advance.cc.
#pragma once

#include "comm/comm.h"
#include "model/optimizer.h"

#include <vector>

namespace orthant {

/// Reduces step statistics (StepSignals) along the pipeline axis, StepSignals::kBytes to each neighbor. For each step,
/// call accumulate() once, then receive_total() once with the same tensor. Messages use the group and tag of
/// StageMessages, so both ranks must call in the order of the Actions in their rows.
/// Example: 3 ranks have losses 1, 2 and 3. After accumulate() they have 1, 3 and 6; after receive_total() all have 6.
class StatisticsChain {
 public:
  /// The Comm must outlive it.
  explicit StatisticsChain(Comm& comm) : comm_(comm) {}
  /// True on the last pipeline rank.
  bool is_last_rank() const;
  /// Waits for the previous rank's statistics, adds them to `statistics`, or takes their maxima, and starts the send to
  /// the next rank.
  void accumulate(const at::Tensor& statistics);
  /// On the last rank `statistics` is the total already. Elsewhere it waits for the total and overwrites `statistics`.
  /// Then it starts the send to the previous rank.
  void receive_total(const at::Tensor& statistics);
  /// Returns when all sends have completed. Call it when no step follows immediately.
  void wait_for_sends();

 private:
  struct PendingSend {
    at::Tensor statistics;
    Work work;
  };
  void send(const at::Tensor& statistics, int position, PendingSend& pending);

  Comm& comm_;
  PendingSend to_next_, to_previous_;
};

/// Copies of masters and optimizer state, allocated at the first save(). They take as many bytes as the originals.
class OptimizerBackup {
 public:
  OptimizerBackup(Weights& weights, const Optimizer& optimizer) : weights_(weights), optimizer_(optimizer) {}
  /// Copies masters and optimizer state.
  void save();
  /// Restores the same bits, and updates the working values of owned elements. Requires an earlier save().
  void restore();

 private:
  Weights& weights_;
  const Optimizer& optimizer_;
  std::vector<at::Tensor> buffers() const;  // the buffers that a step changes: masters, then optimizer state
  std::vector<at::Tensor> copies_;          // in the order of buffers(); empty before the first save()
};

}  // namespace orthant

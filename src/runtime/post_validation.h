// Post-validation of the optimizer's step on one rank (parallel/pipeline/post_validation_plan.h). StepChain sums the
// step statistics over pipeline ranks. StepCopy undoes a step. Session decides when to use them.
#pragma once

#include "comm/comm.h"
#include "model/optimizer.h"

#include <vector>

namespace orthant {

/// Sums step statistics along the pipeline axis, and returns the total in the opposite direction. Example: 3 ranks have
/// 1, 2 and 3. After add_up() they have 1, 3 and 6; after learn() all have 6. The last rank has the total first.
class StepChain {
 public:
  /// The Comm must outlive it.
  explicit StepChain(Comm& comm) : comm_(comm) {}
  /// True on the last pipeline rank.
  bool ends_here() const;
  /// Adds the sum of all previous pipeline ranks to `numbers`, and sends the result to the next rank without waiting
  /// for the send completion.
  void add_up(const at::Tensor& numbers);
  /// Overwrites `numbers` with the total of all ranks, and sends it to the previous rank without waiting for the send
  /// completion.
  void learn(const at::Tensor& numbers);
  /// Returns when all sends have completed.
  void finish();

 private:
  struct Leaving {
    at::Tensor numbers;
    Work work;
  };
  void tell(const at::Tensor& numbers, int position, Leaving& leaving);

  Comm& comm_;
  Leaving ahead_, back_;
};

/// A copy of masters and optimizer state from before a step, which restores exactly the same bits.
class StepCopy {
 public:
  StepCopy(Weights& weights, const Optimizer& optimizer) : weights_(weights), optimizer_(optimizer) {}
  /// Copies masters and optimizer state.
  void keep();
  /// Writes them back, and updates the working values from the masters.
  void restore();

 private:
  Weights& weights_;
  const Optimizer& optimizer_;
  std::vector<at::Tensor> buffers() const;  // the buffers that a step changes: masters, then optimizer state
  std::vector<at::Tensor> copies_;          // in the order of buffers(); empty before the first keep()
};

}  // namespace orthant

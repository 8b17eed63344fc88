// What post-validation of the optimizer's step takes on one rank (parallel/pipeline/post_validation_plan.h): the chain
// of numbers over pipeline ranks, and what a step is undone from. Session decides.
#pragma once

#include "comm/comm.h"
#include "model/optimizer.h"

namespace orthant {

/// Numbers of a step that grow from rank to rank, and go back when they are whole.
class StepChain {
 public:
  /// The Comm must outlive it.
  explicit StepChain(Comm& comm) : comm_(comm) {}
  bool ends_here() const;
  /// Adds those of all ranks before, and tells the next rank; does not wait for it.
  void add_up(const at::Tensor& numbers);
  /// Becomes what the last rank has; tells the rank before, and does not wait for it.
  void learn(const at::Tensor& numbers);
  /// Returns when everything told has left.
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

/// Masters and moments before a step, bit by bit.
class StepCopy {
 public:
  StepCopy(Weights& weights, Optimizer& optimizer) : weights_(weights), optimizer_(optimizer) {}
  void keep();
  void restore();

 private:
  Weights& weights_;
  Optimizer& optimizer_;
  at::Tensor masters_, first_moments_, second_moments_;
};

}  // namespace orthant

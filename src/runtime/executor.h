// The one interpreter: carries out a rank's row of the schedule. It knows what each kind of Action does, and nothing of
// why the row is as it is.
#pragma once

#include "model/transformer.h"
#include "parallel/data/run.h"
#include "schedule/schedule.h"

#include <cstdint>
#include <functional>
#include <map>
#include <span>

namespace orthant {

struct StepInput {
  /// The microbatch, or one without sequences, which costs nothing and adds nothing.
  std::function<Microbatch(int microbatch)> load;
  /// How many of this rank's microbatches have sequences.
  int64_t live_microbatches = 0;
  /// Told before each Action what is about to be done: its text and its index in the row.
  std::function<void(const Action&, size_t index)> announce;
  /// Told after each F the sum of scaled losses so far.
  std::function<void(double)> loss;
};

class Executor {
 public:
  /// Takes over weights.on_gradient; all three must outlive it. The model is one stage, number 0.
  Executor(const Transformer& model, Weights& weights, GradientReducer& reducer);
  /// Forward and backward of all microbatches and the reductions; leaves summed gradients in the weights' buffers.
  void run(std::span<const Action> row, const StepInput& input);

 private:
  void forward(const Action& action, const StepInput& input);
  void backward(const Action& action);

  const Transformer& model_;
  Weights& weights_;
  GradientReducer& reducer_;
  std::map<std::pair<int, int>, at::Tensor> live_;  // loss of each (stage, microbatch) between its F and its B
  double loss_ = 0;
};

}  // namespace orthant

// The one interpreter: carries out a rank's row of the schedule. It knows what each kind of Action does, and nothing of
// why the row is as it is.
#pragma once

#include "model/transformer.h"
#include "parallel/data/run.h"
#include "plan/plan.h"
#include "runtime/stage_messages.h"
#include "schedule/schedule.h"

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>

namespace orthant {

struct StepInput {
  /// The microbatch, or one without sequences, which costs nothing, adds nothing and sends nothing.
  std::function<Microbatch(int microbatch)> load;
  /// How many of this rank's microbatches have sequences.
  int64_t live_microbatches = 0;
  /// Told before each Action what is about to be done: its text and its index in the row.
  std::function<void(const Action&, size_t index)> announce;
  /// Told after each F of the last stage the sum of scaled losses so far.
  std::function<void(double)> loss;
};

/// What the interpreter knows of the pipeline.
struct StageTable {
  std::vector<Stage> stages;
  std::vector<std::vector<int>> buckets;  // of each stage: positions in the reducer's
  /// What this rank has of the residual stream in a microbatch; no sequences where it is empty.
  std::function<std::vector<int64_t>(int microbatch)> stream_shape;
};

class Executor {
 public:
  /// Takes over weights.on_gradient; model, weights, reducer and Comm must outlive it.
  Executor(StageTable table, const Transformer& model, Weights& weights, GradientReducer& reducer, Comm& comm);
  /// Forward and backward of all microbatches and the reductions; leaves summed gradients in the weights' buffers.
  void run(std::span<const Action> row, const StepInput& input);

 private:
  using Key = std::pair<int, int>;  // stage, microbatch
  // Between F and B: what backward starts from, and the stage's input, which gets the gradient that goes on.
  struct Live {
    torch::autograd::Edge output;
    at::Tensor input, loss;
  };

  void forward(const Action& action, const StepInput& input);
  void backward(const Action& action);
  void weight_gradients(const Action& action);
  void receive(const Action& action);

  const StageTable table_;
  const Transformer& model_;
  Weights& weights_;
  GradientReducer& reducer_;
  StageMessages messages_;
  std::map<Key, Live> live_;
  std::map<Key, std::vector<std::function<void()>>> deferred_;  // products of weight gradients, between I and W
  double loss_ = 0;
};

}  // namespace orthant

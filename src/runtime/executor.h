// The one interpreter: carries out a rank's row of the schedule. It knows what each kind of Action does with messages,
// when it was done, and nothing of why the row is as it is or of what a stage computes. What stands in the row behind a
// computation and before the next is received during the first: a RECV is posted before the computation in front of it,
// and its buffer lives from there until the stage that reads it is done with it.
#pragma once

#include "base/clock.h"
#include "runtime/stage_messages.h"
#include "schedule/results.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace orthant {

/// What computations do: those of the model, or for measuring a schedule, naps (benchmarks/pipeline/pipeline_dry.cc).
struct StageWork {
  /// F: a stage's output from its input, which is undefined on the first stage, as the output is on the last.
  std::function<at::Tensor(const Action& action, at::Tensor input)> forward;
  /// B or I: the gradient of the stage's input from that of its output, undefined where those are.
  std::function<at::Tensor(const Action& action, at::Tensor gradient)> backward;
  std::function<void(const Action& action)> weight_gradients = {};  // W
  std::function<void(const Action& action)> reduce = {};            // REDUCE
  std::function<void(const Action& action)> vocabulary = {};        // S, Z, T, TW, E, EB
  /// Returns when there is what a computation reads at a barrier of the vocabulary.
  std::function<void(const Action& action)> wait_for = {};
  std::function<void(const Action& action)> step = {};  // STEP
  /// SETTLE. True: weights have changed, and the row begins anew; before that it has called discard().
  std::function<bool(const Action& action)> settle = {};
};

/// What the interpreter knows of the pipeline.
struct StageTable {
  std::vector<int> owners;  // pipeline rank by stage
  PerResult<int> departures = {};  // of the schedule with backwards; none: what is sent is held to the row's end
  /// What this rank has of the residual stream in a microbatch; no sequences where it is empty.
  std::function<std::vector<int64_t>(int microbatch)> stream_shape;
  at::TensorOptions stream;
};

/// From when an Action began, with what it reads there, to its end: a STEP is as long as it does not wait. A message's:
/// of starting it.
struct Period {
  Clock::time_point start, end;
};

class Executor {
 public:
  /// The Comm must outlive it.
  Executor(StageTable table, StageWork work, Comm& comm);
  /// `announce` is told before each Action what is about to be done, and its index in the row.
  void run(std::span<const Action> row, const std::function<void(const Action&, size_t index)>& announce);
  /// Drops what stages have handed each other since the row began. validate() has seen to it that others do as well.
  void discard() { messages_.discard(); }
  /// Of the row that was carried out last, by index.
  const std::vector<Period>& periods() const { return periods_; }

 private:
  void carry_out(const Action& action, size_t index);
  void step(const Action& action);
  void send(const Action& action, size_t index);
  size_t receive_ahead(std::span<const Action> row, size_t index);
  bool has_sequences(const Action& action) const { return table_.stream_shape(action.microbatch).front() > 0; }
  void compute(const Action& action);
  void vocabulary(const Action& action);
  void wait_for(const Action& action);
  void receive(const Action& action);
  /// What a stage reads, undefined where it has no neighbor; the Action's period begins when it is there.
  at::Tensor take(const Action& action);

  Comm& comm_;
  const StageTable table_;
  const StageWork work_;
  StageMessages messages_;
  bool learns_ = false;  // the row has backwards
  std::vector<Period> periods_;
};

}  // namespace orthant

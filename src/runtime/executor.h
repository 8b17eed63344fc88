// The interpreter of the schedule: it carries out one rank's row of Actions. It computes, sends and receives, and
// records when each Action ran. It depends neither on why the row has its order nor on what a stage computes.
// A RECV that stands between two computations is posted before the first of them, so that the message arrives while the
// rank computes. In the row 0F0 1RECV_F1 1F1, the receive is posted before 0F0 starts. Its buffer lives from then until
// the stage that reads it is done with it.
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

/// The computations behind Actions: the model's, or sleeps when a benchmark measures a schedule alone
/// (benchmarks/pipeline/pipeline_dry.cc).
struct StageWork {
  /// F: computes a stage's output from its input. The input is undefined on the first stage, the output on the last.
  std::function<at::Tensor(const Action& action, at::Tensor input)> forward;
  /// B or I: computes the gradient of the stage's input from the gradient of its output. The gradient of the output is
  /// undefined on the last stage, the gradient of the input on the first.
  std::function<at::Tensor(const Action& action, at::Tensor gradient)> backward;
  std::function<void(const Action& action)> weight_gradients = {};  // W
  std::function<void(const Action& action)> reduce = {};            // REDUCE
  std::function<void(const Action& action)> vocabulary = {};        // S, Z, T, TW, E, EB
  /// Returns when the result of a vocabulary barrier that this computation reads has arrived.
  std::function<void(const Action& action)> wait_for = {};
  std::function<void(const Action& action)> step = {};  // STEP
  /// FINALIZE: finalizes the previous step. Returns true if the weights have changed, after calling discard(); the row
  /// then starts again from its beginning.
  std::function<bool(const Action& action)> settle = {};
};

/// The facts about the pipeline that the interpreter needs.
struct StageTable {
  std::vector<int> owners;  // pipeline rank by stage
  // Send completions of the training schedule. If it is empty, sent tensors are held to the end of the row.
  PerResult<int> send_completions = {};
  /// Shape of this rank's shard of the residual stream in a microbatch. Its first dimension is 0 if the rank has no
  /// sequences in that microbatch.
  std::function<std::vector<int64_t>(int microbatch)> stream_shape;
  at::TensorOptions stream;
};

/// Start and end of one Action. It starts when the last input that it waits for has arrived. A STEP's time excludes its
/// waits. The interval of a SEND or RECV is the time to post it, not the time of the transfer.
struct Interval {
  Clock::time_point start, end;
};

class Executor {
 public:
  /// The Comm must outlive it.
  Executor(StageTable table, StageWork work, Comm& comm);
  /// Carries out the row. `announce` is called before each Action with the Action and its index in the row.
  void run(std::span<const Action> row, const std::function<void(const Action&, size_t index)>& announce);
  /// Drops all messages between stages since the row began. The schedule's validate() guarantees that the ranks at the
  /// other ends drop them too.
  void discard() { messages_.discard(); }
  /// Periods of the row that was carried out last, by index.
  const std::vector<Interval>& intervals() const { return intervals_; }

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
  /// Returns a stage's input; undefined if the stage has no neighbor on that side. The Action's interval starts when
  /// the input has arrived.
  at::Tensor take(const Action& action);

  Comm& comm_;
  const StageTable table_;
  const StageWork work_;
  StageMessages messages_;
  bool has_backwards_ = false;  // the row has backwards
  std::vector<Interval> intervals_;
};

}  // namespace orthant

// The interpreter of the schedule: it carries out one rank's row of Actions and records when each ran. It computes,
// sends and receives. It does not depend on why the row has its order or on what a stage computes.
// A RECV between two computations is posted before the first of them (schedule/posted_receives.h). Its buffer lives
// until the stage that reads it is done.
// Microbatches in which the rank has no sequences are skipped: no F, B, I, W, vocabulary pass or message.
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

/// The computations behind Actions. forward and backward are required. Each other function is required if the row has
/// its Actions, except wait_for. A benchmark that measures a schedule alone sleeps in them
/// (benchmarks/pipeline/pipeline_dry.cc).
struct StageWork {
  /// F: computes a stage's output from its input. The input is undefined on the first stage, the output on the last.
  std::function<at::Tensor(const Action& action, at::Tensor input)> forward;
  /// B or I: computes the gradient of the stage's input from the gradient of its output. The gradient of the output is
  /// undefined on the last stage, the gradient of the input on the first.
  std::function<at::Tensor(const Action& action, at::Tensor gradient)> backward;
  std::function<void(const Action& action)> weight_gradients = {};  // W
  std::function<void(const Action& action)> reduce = {};            // REDUCE
  std::function<void(int stage)> unshard = {}, reshard = {};        // UNSHARD, RESHARD
  std::function<void(const Action& action)> vocabulary = {};        // S, Z, T, TW, E, EB
  /// Called before each F, B, I and vocabulary pass. Returns when the barrier results that it reads have arrived.
  std::function<void(const Action& action)> wait_for = {};
  std::function<void(const Action& action)> step = {};  // STEP
  /// FINALIZE: finalizes the previous step. If it must change the weights, it first calls Executor::discard(), and
  /// returns true. The row then starts again from its beginning.
  std::function<bool(const Action& action)> finalize = {};
};

/// The facts about the pipeline that the interpreter needs.
struct StageTable {
  std::vector<int> owners;  // pipeline rank by stage
  // Send completions of the training row. Empty: sent tensors are held to the end of the row. A row without backwards
  // ignores them and keeps at most two incomplete sends.
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
  /// Carries out the row and returns when all its sends have completed. `announce` is called before each Action, again
  /// after a restart. Throws LogicError for an Action that this runtime does not carry out, for a vocabulary pass
  /// without its function, or for a message that no stage has read.
  void run(std::span<const Action> row, const std::function<void(const Action&, size_t index)>& announce);
  /// Drops all messages between stages since the row began. The schedule's validate() guarantees that the ranks at the
  /// other ends drop them too.
  void discard() { messages_.discard(); }
  /// Intervals of the last row, by index; after a restart, those of the repeated row.
  const std::vector<Interval>& intervals() const { return intervals_; }

 private:
  void carry_out(const Action& action, size_t index);
  void step(const Action& action);
  void send(const Action& action, size_t index);
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

// Session: one rank's part of a run. It is built from a Plan, holds weights, model and optimizer, and carries out
// training steps.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/prefetch.h"
#include "model/cuda_device.h"
#include "model/optimizer.h"
#include "model/transformer.h"
#include "parallel/data/run.h"
#include "plan/plan.h"
#include "runtime/from_plan.h"
#include "runtime/model_stages.h"
#include "runtime/post_validation.h"

namespace orthant {

/// Result of a step after its all-reduces, the same on all ranks except data_seconds.
struct StepResult {
  int64_t step = 0;
  double loss = 0;  // mean over the labels of the global batch, nats per token
  double norm = 0;  // of all gradients, before clipping
  int64_t valid_labels = 0;
  int64_t tokens = 0;  // in the global batch; may exceed valid_labels, for example if tokens are masked
  // A rank was asked to stop, by a signal other than SIGINT or by SIGINT.
  bool terminate = false, interrupt = false;
  bool stopped() const { return terminate || interrupt; }
  bool is_finite() const { return std::isfinite(loss) && std::isfinite(norm); }
  double peak_memory_bytes = 0;               // of the largest rank, before this step
  double data_seconds = 0;                    // of this rank
};

class Session {
 public:
  /// Plan, loader and Comm must outlive it. The second form is built from other parts than session_parts(plan, comm).
  Session(const Plan& plan, const Loader& train, Comm& comm);
  Session(const Plan& plan, const Loader& train, Comm& comm, SessionParts parts);
  Session(const Session&) = delete;

  /// Values of this rank that the others receive with the next step.
  struct Signals {
    bool terminate = false, interrupt = false;
    double peak_memory_bytes = 0;
  };
  /// Computes the gradients of global batch number `step` (from 1), summed over all ranks, and the step's result. With
  /// optimizer.in_backward it also updates the owned elements of each parameter, and no gradient is left.
  StepResult gradients(int64_t step, const Signals& signals);
  /// Ends a step. Unless gradients() has updated the weights, clips the gradients by the norm of the result, or of the
  /// previous update with training.clip_by = "previous_norm", and updates. Then gathers the updated weights; with
  /// zero_stage 3 only those that belong to no unit. If must_skip(result), weights, optimizer state and last_norm()
  /// stay as they are. All ranks must call it together.
  void update(int64_t step, const StepResult& result);
  /// True if the result is not finite, or if its norm exceeds training.skip_above_norm.
  bool must_skip(const StepResult& result) const;
  /// The gradient norm of the last step that updated the weights; a checkpoint's norm takes its place. Empty before.
  std::optional<double> last_norm() const { return last_norm_; }
  void set_last_norm(double norm) { last_norm_ = norm; }
  /// The number of skipped steps since step 1; a checkpoint has those before it. The optimizer does not count them: its
  /// bias correction is that of the number of updates, as with PyTorch's GradScaler.
  int64_t skipped_steps() const { return skipped_steps_; }
  void set_skipped_steps(int64_t steps) { skipped_steps_ = steps; }
  /// Called with each parameter when its gradient is final, before its update. All ranks call it in the same order.
  std::function<void(size_t parameter)> before_update;
  /// Returns the summed gradient of this rank's shard of the parameter. All ranks must call it together.
  at::Tensor gradient_shard(size_t parameter) const;

  /// Called with a step's total result, the same on all ranks, before its update becomes final. May throw.
  using OnFinalResult = std::function<void(const StepResult&)>;
  /// Computes gradients and updates the weights. Calls `on_final_result` for each step that becomes final in the call:
  /// this step; if results are late (reports_late(Config)), the previous step; with post-validation usually the
  /// previous step, and possibly both. Throws what `on_final_result` throws. All ranks must call it with the same step.
  void advance(int64_t step, const Signals& signals, const OnFinalResult& on_final_result);
  /// Returns when all ranks have the last step's result and its update is final. All ranks must call it together.
  void finalize_pending_step(const OnFinalResult& on_final_result);

  /// Sums over held-out sequences, from one all-reduce over all ranks.
  struct Validation {
    double nats = 0;
    int64_t labels = 0;
    int64_t bytes = 0;  // of text in the labels
  };
  /// Evaluates at most `batches` global batches of held-out data. bytes_of_token: bytes of text, by token id.
  Validation validate(const Loader& held_out, int64_t batches, std::span<const int32_t> bytes_of_token);

  /// Finds the first tensor that is not finite. It examines weights, then the results of a second forward on that
  /// step's batch, in order, then gradients. If those are of a later step by now, it first computes them again. All
  /// ranks must call it together.
  struct NotFinite {
    std::string what;    // the first that this rank sees; empty if all are finite
    bool first = false;  // no rank sees an earlier one, in the order of computation
  };
  NotFinite find_first_not_finite(int64_t step);
  /// "the weight NAME" for the first weight that is not finite; empty if all are finite.
  std::string first_weight_not_finite() const;

  /// Returns this rank's shard of the parameter, or of its gradient or optimizer state, from its owned elements, to
  /// which all replicas contribute their chunks. All ranks must call it together.
  at::Tensor shard_from_owned(const at::Tensor& own, size_t parameter) const;
  /// Returns the masters, or the working values, of this rank's shard of the parameter. All ranks must call it
  /// together.
  at::Tensor master_shard(size_t parameter) const;
  at::Tensor value_shard(size_t parameter) const;
  Comm& comm() const { return comm_; }

  /// When this rank carried out each Action of its row, in the last step.
  const std::vector<Interval>& intervals() const { return intervals_; }

  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }
  ShardedStates* sharded_states() { return sharded_.get(); }  // null unless gradients exist by unit
  Optimizer& optimizer() { return optimizer_; }
  const Transformer& model() const { return model_; }
  int peak_in_flight() const { return stages_.peak_in_flight(); }  // in the last step

 private:
  int64_t labels_of(int64_t step) const;
  /// Returns a StepInput::announce for a row of `actions` Actions. It reports each Action as the rank's activity.
  std::function<void(const Action&, size_t index)> activity_reporter(size_t actions, std::string what) const;
  /// This rank's step statistics: StepSignals with zeros for the loss and the squares of gradients. They are on the
  /// weights' device, except with post-validation: its messages between ranks begin on the CPU.
  at::Tensor initial_step_statistics(const Signals& signals) const;
  /// Carries out the rank's row, and writes the loss into the statistics.
  StepResult carry_out(int64_t step, const at::Tensor& statistics, StepInput input);
  /// Writes the loss of the row so far into the statistics, unless it is there already.
  void write_loss(const at::Tensor& statistics);
  /// Finishes the gradients after the row, and writes the loss and their squares into the statistics.
  void finish_gradients(const at::Tensor& statistics);
  /// Updates the parameters of a bucket whose gradients are final. After the first gradient that is not finite, this
  /// rank updates only matrices that other ranks exchange with it.
  void update_in_backward(int bucket);
  /// Calls before_update for all parameters, unless backward has called it.
  void announce_updates() const;
  /// Updates the weights with this step's gradients times gradient_scale_, unless backward has done so, and gathers
  /// them.
  void update_weights(int64_t step);
  /// Enqueues the step on the device, without a wait for it, and reports the previous step.
  void advance_late(int64_t step, const Signals& signals, const OnFinalResult& on_final_result);
  /// Receives and reports the step that the device has decided about, if there is one.
  void report_late(const OnFinalResult& on_final_result);
  /// Writes the factor that clips this step's gradients to gradient_scale_. `norm`: their norm, which clipping by the
  /// previous norm ignores.
  void set_clip_scale(double norm);
  /// Lets the device write that factor, or kSkipsUpdate, from the summed statistics.
  void decide_update(const at::Tensor& statistics);
  /// Adds the squares of the gradient's elements that this rank counts.
  void add_to_norm(size_t parameter);
  /// Adds the gradients of parameters that two stages hold (a tied embedding and head), so that both have the sum, of
  /// the owned elements.
  void add_tied_gradients();
  /// Gathers the updated chunks: all weights with zero_stage 1 and 2, only those outside units with 3.
  void gather_weights();
  /// All-reduces the statistics. `along_pipeline`: over all ranks; otherwise over the ranks with this pipeline rank.
  void sum(const at::Tensor& statistics, bool along_pipeline);
  /// Fills the result from summed statistics.
  static void read(const at::Tensor& statistics, StepResult& result);
  /// True if loss and norm are finite and the norm needs no clipping.
  bool permits_update(const StepResult& result) const;
  /// Receives the total statistics of the previous step. Returns true if that step had to be redone: it calls
  /// `discard`, and then changes the weights.
  bool validate_pending(const OnFinalResult& on_final_result, const std::function<void()>& discard);
  /// Columns of a tensor mesh see the same tokens and compute the same loss, so only column 0 reports it.
  bool reports_loss() const { return comm_.mesh().coord(comm_.rank(), kColumn) == 0; }
  /// Loads a microbatch; `labels` is the number of valid labels in the global batch of the step.
  Microbatch load(int64_t step, int microbatch, int64_t labels);
  /// The samples of each of this rank's microbatches.
  std::vector<SampleRange> samples_of(int64_t step) const;
  /// Begins to read the samples of this step and the next on another thread.
  void read_ahead(int64_t step);
  int64_t first_sample(int64_t step) const { return (step - 1) * plan_.config.training.global_batch_size; }

  const Plan& plan_;
  const Loader& train_;
  Comm& comm_;
  const SessionParts parts_;
  std::vector<Range> counted_in_norm_;  // by parameter
  Weights weights_;
  Transformer model_;
  Optimizer optimizer_;
  at::Tensor gradient_scale_;                 // factor for the next update: see Optimizer::step()
  std::unique_ptr<GradientReducer> reducer_;  // null if gradients exist by unit
  std::unique_ptr<ShardedStates> sharded_;    // null otherwise
  std::optional<double> last_norm_;
  int64_t skipped_steps_ = 0;
  int64_t step_ = 0;                          // of the row in progress
  SquaresSum squares_;                        // of its gradients that the rank counts in the norm
  at::Tensor loss_;                           // its sum so far, until it is in the statistics
  std::optional<size_t> not_finite_;          // with optimizer.in_backward: the first parameter with such a gradient
  ModelStages stages_;
  std::vector<Interval> intervals_;

  // A step whose total statistics have not been received yet.
  struct Pending {
    StepResult result;
    at::Tensor statistics;
    bool updated = false;  // STEP has updated the weights, because the sum of earlier ranks and this one permitted it
  };
  std::optional<Pending> pending_;  // with post-validation
  // A step that the device has decided about.
  struct DecidedStep {
    StepResult result;
    HostCopy statistics;
  };
  std::optional<DecidedStep> decided_step_;  // if results are late
  bool expects_clipping_ = true;  // the last step was clipped or not finite; true before the first step
  StatisticsChain chain_;
  OptimizerBackup backup_;
  Prefetcher batches_;
};

}  // namespace orthant

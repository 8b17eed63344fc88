// Session: one rank's part of a run, from a Plan: weights, model, optimizer, and the step that moves them.
#pragma once

#include "data/loader.h"
#include "model/optimizer.h"
#include "model/transformer.h"
#include "parallel/data/run.h"
#include "plan/plan.h"
#include "runtime/from_plan.h"
#include "runtime/model_stages.h"
#include "runtime/mutation.h"
#include "runtime/post_validation.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace orthant {

/// What all ranks know after the reductions of a step.
struct StepResult {
  int64_t step = 0;
  double loss = 0;       // of the whole global batch, nats a token
  double norm = 0;       // of all gradients, before clipping
  int64_t valid_labels = 0;
  int64_t tokens = 0;    // as many as labels, unless masked ones are guessed
  bool terminate = false, interrupt = false;  // some rank was asked to
  bool stopped() const { return terminate || interrupt; }
  double peak_memory_bytes = 0;               // of the largest rank, before this step
  double data_seconds = 0;                    // of this rank
};

class Session {
 public:
  /// Plan, loader and Comm must outlive it.
  Session(const Plan& plan, const Loader& train, Comm& comm, Mutation mutation = Mutation::none);
  Session(const Session&) = delete;

  /// What this rank tells the others with the next step.
  struct Signals {
    bool terminate = false, interrupt = false;
    double peak_memory_bytes = 0;
  };
  /// Gradients of global batch number step (from 1), summed over all ranks.
  StepResult gradients(int64_t step, const Signals& signals);
  /// Clips and updates.
  void update(int64_t step, const StepResult& result);

  /// Told what all ranks know of a step before its update is final. May throw.
  using Known = std::function<void(const StepResult&)>;
  /// Computes gradients and updates. Calls `known` for every step that has become final: this one; where the plan
  /// post-validates, as a rule the one before, or both.
  void advance(int64_t step, const Signals& signals, const Known& known);
  /// Returns when the last step is known, and its update final. All ranks call it together.
  void settle(const Known& known);

  /// Sums over the held-out sequences, in one all-reduce over all ranks.
  struct Validation {
    double nats = 0;
    int64_t labels = 0;
    int64_t bytes = 0;  // of text that the labels stand for
  };
  Validation validate(const Loader& held_out, int64_t batches, std::span<const int32_t> bytes_of_token);

  /// The first tensor that is not finite: a weight, then what forward makes of the batch of that step, in order, then a
  /// gradient. All ranks call it together.
  struct NotFinite {
    std::string what;    // that this rank sees; empty if none
    bool first = false;  // no rank sees one before it, in the order of the stages
  };
  NotFinite first_not_finite(int64_t step);
  /// "the weight NAME" of the first one that is not finite, or nothing.
  std::string first_weight_not_finite() const;

  /// The whole of a parameter, or of what belongs to it, on rank 0, and elsewhere nothing. All ranks call it together;
  /// those that hold the first copy have parts in it.
  at::Tensor gather(const at::Tensor& part, size_t parameter) const;
  /// Rank 0's number, on every rank; all of them call it together: a broadcast of 8 bytes over all axes.
  int64_t heard(int64_t number) const;
  bool speaks() const { return comm_.rank() == 0; }

  /// When this rank carried out each Action of its row, in the last step.
  const std::vector<Period>& periods() const { return periods_; }

  Weights& weights() { return weights_; }
  Optimizer& optimizer() { return optimizer_; }
  const Transformer& model() const { return model_; }
  int peak_live() const { return stages_.peak_live(); }  // of the last step

 private:
  int64_t labels_of(int64_t step) const;
  /// Of a row of so many, for StepInput.
  std::function<void(const Action&, size_t index)> announcing(size_t actions, std::string what) const;
  /// What this rank tells the others of a step: StepSignals, then squares of gradients as norm_slots() has them.
  at::Tensor numbers_of(const Signals& signals) const;
  /// The rank's row; the loss goes into the numbers.
  StepResult carry_out(int64_t step, const at::Tensor& numbers, StepInput input);
  /// What is left to do to gradients behind the row, and their squares into the numbers.
  void finish_gradients(const at::Tensor& numbers);
  void sum_copies();
  at::Tensor with_other_slices(const at::Tensor& rows, at::IntArrayRef shape) const;
  /// Over all ranks; or over all that are at this place of the pipeline.
  void sum(const at::Tensor& numbers, bool along_pipeline);
  void read(const at::Tensor& numbers, StepResult& result) const;
  bool permitted(const StepResult& result) const;
  /// Learns what all know of the step before. True if that was redone: weights have changed, after `discard`.
  bool validate_pending(const Known& known, const std::function<void()>& discard);
  /// Columns see the same tokens, and the loss of all of them: one tells.
  bool counts_tokens() const { return comm_.mesh().coord(comm_.rank(), kColumn) == 0; }
  /// labels: valid ones of the step's whole batch.
  Microbatch load(int64_t step, int microbatch, int64_t labels) const;
  int64_t first_sample(int64_t step) const { return (step - 1) * plan_.config.training.global_batch_size; }

  const Plan& plan_;
  const Loader& train_;
  Comm& comm_;
  Mutation mutation_;
  DataShare share_;
  std::vector<int64_t> places_;  // of the tokens of each sequence that are here
  std::vector<NormSlots> norm_slots_;
  Weights weights_;
  Transformer model_;
  Optimizer optimizer_;
  GradientReducer reducer_;
  ModelStages stages_;
  std::vector<Period> periods_;

  // A step that is not known to all yet.
  struct Pending {
    StepResult result;
    at::Tensor numbers;
    bool moved = false;  // by what was known of it
  };
  std::optional<Pending> pending_;
  bool expects_clipping_ = true;  // as in the last step; the first one is none's guess
  StepChain chain_;
  StepCopy before_;
};

}  // namespace orthant

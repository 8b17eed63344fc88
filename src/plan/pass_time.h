// Seconds of the passes of a stage on given hardware: sums over the list of operations of a block (model/block_plan.h).
// The rank with coordinate 0 on every axis stands for all ranks, because it has the largest shards. The cost does not
// grow with the number of ranks.
#pragma once

#include <map>
#include <string>

#include "hardware/times.h"
#include "mesh/collective.h"
#include "plan/pipeline.h"

namespace orthant {

/// Seconds, by what takes them.
struct TimeParts {
  double products = 0;   // matrix products, the logits among them
  double attention = 0;  // scores, softmax and their products
  double kernels = 0;    // norms, activations, rotary positions, embedding, loss, optimizer: bound by memory
  std::map<std::string, double> communication = {};  // that no computation hides, by axis

  double seconds() const;
  /// Adds `times` times the other parts.
  TimeParts& add(const TimeParts& other, double times = 1);
};

/// The passes of one stage for one microbatch. B takes input + weights.
struct PassTimes {
  TimeParts forward;  // F; with the head, also the loss and its gradients
  TimeParts input;    // I, with the operations that recomputation repeats
  TimeParts weights;  // W
};

/// The passes of the vocabulary layers on a rank that holds a shard of their rows, for one microbatch.
struct VocabularyTimes {
  TimeParts logits;           // S
  TimeParts exponentials;     // Z, which only the naive order has
  TimeParts gradients;        // T, or TW
  TimeParts lookup, scatter;  // E, EB
  std::map<ActionKind, double> barriers = {};  // as Durations::barrier_times
};

/// A computation that hides the messages of its products.
struct HidingComputation {
  double seconds = 0;
  int64_t products = 0;
};

/// Times of the passes for microbatches of `sequences` sequences, on the rank with coordinate 0 on every axis.
class PassTimer {
 public:
  /// facts.hardware must be set. `sharding` must outlive this object.
  PassTimer(const Sharding& sharding, int64_t sequences);

  PassTimes stage(const Stage& stage) const;
  /// Requires a vocabulary that is sharded over the pipeline.
  VocabularyTimes vocabulary() const;
  /// Seconds of the barriers of that vocabulary, by the kind that waits: one collective over the pipeline ranks. With
  /// algorithm 2, B waits for two: the statistics, and then the sum of the gradients.
  std::map<ActionKind, double> barriers() const;
  /// Seconds of a message between stages of two pipeline ranks.
  double message(int from_pipeline_rank, int to_pipeline_rank) const;

 private:
  void add_attention(PassTimes& times, AttentionSize size) const;
  PassTimes attention_times() const;
  PassTimes operation_times(const ColumnOperation& operation) const;
  void time_blocks();
  TimeParts head() const;

  double product(ProductKind kind, int64_t m, int64_t k, int64_t n) const;
  double kernel(double bytes) const { return kernel_seconds(hardware_, bytes); }
  double seconds_of(const Messages& messages) const;
  /// Adds the messages to `parts`. Products move their operands in panels: the computation hides all panels but the
  /// first one of each product, unless communication occupies the device.
  void add_messages(TimeParts& parts, const std::vector<Messages>& messages, HidingComputation computation = {}) const;

  const Sharding& sharding_;
  const Hardware& hardware_;
  int rank_;
  int64_t sequences_;
  TensorShape shape_;
  TensorTraffic traffic_;
  int64_t tokens_;                   // of the microbatch, on this rank
  PassTimes keeping_, recomputing_;  // of a block without and with recomputation
};

/// Durations of the passes of the stages and of their messages, in seconds. Requires facts.hardware.
Durations pass_seconds(const Sharding& sharding, const std::vector<Stage>& stages);

}  // namespace orthant

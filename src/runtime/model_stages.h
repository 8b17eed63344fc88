// Applies the Actions of a row to the model: forward and backward of its stages, and the reduction of their gradients.
#pragma once

#include <torch/csrc/autograd/function.h>  // Edge; edge.h alone does not compile

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "model/transformer.h"
#include "parallel/data/run.h"
#include "parallel/data/zero.h"
#include "plan/plan.h"
#include "runtime/executor.h"
#include "runtime/vocabulary_stages.h"

namespace orthant {

struct StepInput {
  /// Sequences of this rank in each microbatch. A microbatch with 0 sequences is not computed and sends no message.
  std::vector<int64_t> sequences;
  /// Loads the sequences of a microbatch.
  std::function<Microbatch(int microbatch)> load;
  /// Called before each Action with the Action and its index in the row.
  std::function<void(const Action&, size_t index)> announce;
  /// Called with the sum of scaled losses so far, one number on the device: after each F of the last stage.
  /// If pipeline ranks shard the vocabulary, it is called once, on the last stage's rank, when the row is done.
  std::function<void(const at::Tensor&)> loss;
  /// If set, a row computes logits instead of a loss. Called with the logits [N,V] of tokens that have a label, on the
  /// last stage's rank, or on all pipeline ranks if they shard the vocabulary.
  std::function<void(const at::Tensor& logits)> logits = {};
  /// Carries out STEP: the optimizer's step, if the row has one.
  std::function<void()> step = {};
  /// Carries out FINALIZE: finalizes the previous step. Returns true if that step was redone: the weights have changed,
  /// and the row starts again. Before they change, it calls discard(), which drops results computed with the old
  /// weights.
  std::function<bool(const std::function<void()>& discard)> finalize = {};
};

/// The model's stages on all pipeline ranks.
struct ModelPipeline {
  std::vector<Stage> stages;
  std::vector<std::vector<int>> buckets;  // by stage: indices of gradient buckets
  ShardedUnits units = {};                // empty lists if no state exists by unit
  PerResult<int> send_completions = {};   // send completions, see StageTable
  /// Shape of this rank's shard of the residual stream for a number of sequences.
  std::function<std::vector<int64_t>(int64_t sequences)> stream_shape;
  VocabularyEnds vocabulary = {};
};

class ModelStages {
 public:
  /// Model, weights, reducers and Comm must outlive it. reducer: null if no row has backwards, or with `sharded`.
  /// sharded: null unless gradients exist by unit; it then reduces all gradients.
  ModelStages(ModelPipeline pipeline, const Transformer& model, Weights& weights, GradientReducer* reducer,
              ShardedStates* sharded, Comm& comm);
  ModelStages(const ModelStages&) = delete;
  /// Carries out the row: forward and backward of all microbatches, and the reductions. Afterwards, the weights'
  /// buffers hold summed gradients. A row of forwards, run without grad mode, only reports the loss.
  void run(std::span<const Action> row, const StepInput& input);
  /// When each Action of the last row was carried out.
  const std::vector<Interval>& intervals() const { return executor_.intervals(); }
  /// Maximum number of (stage, microbatch) pairs that were held at once between F and B or W, in the last row.
  int peak_in_flight() const { return peak_in_flight_; }

 private:
  using Key = std::pair<int, int>;  // stage, microbatch
  // State between F and B: the start of backward, and the stage's input, which receives the gradient to send.
  struct Live {
    torch::autograd::Edge output;
    at::Tensor input, loss;
  };

  StageWork stage_work();
  void begin_gradients(const StepInput& input);
  /// Loads a microbatch, or takes it from the stage before if both are parts of one stage of the run file's schedule.
  Microbatch load(const Action& forward);
  /// Waits for the weights that the pass reads; allocates the gradients that it writes.
  void wait_for_weights(const Action& pass);
  void allocate_gradients(const Action& pass);
  /// Calls the function with each bucket of the stage that is sharded.
  void for_each_own_bucket(int stage, const std::function<void(int bucket)>& function) const;
  void begin_vocabulary(const StepInput& input);
  bool finalize();
  at::Tensor forward(const Action& action, at::Tensor input);
  at::Tensor backward(const Action& action, at::Tensor gradient);
  void weight_gradients(const Action& action);

  const ModelPipeline pipeline_;
  const Transformer& model_;
  Weights& weights_;
  GradientReducer* const reducer_;
  ShardedStates* const sharded_;
  Comm& comm_;
  std::unique_ptr<VocabularyStages> vocabulary_;  // null if the vocabulary is not sharded over pipeline ranks
  Executor executor_;
  const StepInput* input_ = nullptr;  // of the current step
  std::optional<std::pair<int, Microbatch>> loaded_;  // for the next part of the same stage
  std::map<Key, Live> live_;
  std::map<Key, std::vector<std::function<void()>>> deferred_;  // products for weight gradients, deferred from I to W
  int peak_in_flight_ = 0;
  at::Tensor loss_;  // sum of scaled losses so far; undefined before the first
};

}  // namespace orthant

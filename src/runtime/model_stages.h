// What the Actions of a row do to the model: stages of layers forward and backward, and their gradients' reduction.
#pragma once

#include "model/transformer.h"
#include "parallel/data/run.h"
#include "plan/plan.h"
#include "runtime/executor.h"
#include "runtime/vocabulary_stages.h"

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>

namespace orthant {

struct StepInput {
  /// How many sequences this rank has of each microbatch. One without any costs nothing and sends nothing.
  std::vector<int64_t> sequences;
  /// Those of a microbatch.
  std::function<Microbatch(int microbatch)> load;
  /// Told before each Action what is about to be done: its text and its index in the row.
  std::function<void(const Action&, size_t index)> announce;
  /// Told after each F of the last stage the sum of scaled losses so far; where the vocabulary is cut over the ranks,
  /// on that stage's rank when the row is done.
  std::function<void(double)> loss;
  /// The optimizer's step, where the row has one.
  std::function<void()> step = {};
  /// True if the step before was redone: weights have changed, and the row begins anew. Before they change it calls
  /// discard(), which drops what was computed with them.
  std::function<bool(const std::function<void()>& discard)> settle = {};
};

/// The model's stages on all pipeline ranks.
struct ModelPipeline {
  std::vector<Stage> stages;
  std::vector<std::vector<int>> buckets;  // of each stage: positions in the reducer's
  PerResult<int> departures = {};           // see StageTable
  /// What this rank has of the residual stream of so many sequences.
  std::function<std::vector<int64_t>(int64_t sequences)> stream_shape;
  VocabularyEnds vocabulary = {};
};

class ModelStages {
 public:
  /// Model, weights, reducer and Comm must outlive it.
  ModelStages(ModelPipeline pipeline, const Transformer& model, Weights& weights, GradientReducer& reducer, Comm& comm);
  ModelStages(const ModelStages&) = delete;
  /// Forward and backward of all microbatches and the reductions; leaves summed gradients in the weights' buffers. Of
  /// a row of forwards, without grad mode, nothing is left but the loss.
  void run(std::span<const Action> row, const StepInput& input);
  /// Negative controls for tests: a stage gets the output of the microbatch before; the first one's W is left out.
  void hand_on_late() { late_ = true; }
  void drop_weights() { dropped_ = true, reducer_.accept_lost(); }
  /// When each Action of that row was carried out.
  const std::vector<Period>& periods() const { return executor_.periods(); }
  /// The most microbatches of stages between their F and their B or W, in that row.
  int peak_live() const { return peak_live_; }

 private:
  using Key = std::pair<int, int>;  // stage, microbatch
  // Between F and B: what backward starts from, and the stage's input, which gets the gradient that goes on.
  struct Live {
    torch::autograd::Edge output;
    at::Tensor input, loss;
  };

  StageWork stage_work();
  void begin_vocabulary(const StepInput& input);
  bool settle();
  at::Tensor forward(const Action& action, at::Tensor input);
  at::Tensor backward(const Action& action, at::Tensor gradient);
  void weight_gradients(const Action& action);

  const ModelPipeline pipeline_;
  const Transformer& model_;
  Weights& weights_;
  GradientReducer& reducer_;
  Comm& comm_;
  std::unique_ptr<VocabularyStages> vocabulary_;  // none where the vocabulary is whole
  Executor executor_;
  const StepInput* input_ = nullptr;  // of the step under way
  std::map<Key, Live> live_;
  std::map<Key, std::vector<std::function<void()>>> deferred_;  // products of weight gradients, between I and W
  int peak_live_ = 0;
  double loss_ = 0;
  bool late_ = false, dropped_ = false;
  std::map<int, at::Tensor> last_;  // by stage, its last output, where that is handed on late
};

}  // namespace orthant

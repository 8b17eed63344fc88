// The vocabulary layers of a pipeline whose vocabulary is sharded over its ranks. They are the embedding before the
// first stage and the output layer after the last. Every rank has rows of both, and carries them out by the Actions S,
// Z, T, TW, E and EB of its row (schedule/barriers.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/transformer.h"
#include "parallel/vocabulary/input.h"
#include "parallel/vocabulary/output.h"
#include "schedule/action.h"

namespace orthant {

struct VocabularyEnds {
  // One of vocabulary_algorithms(). Empty: the first stage has the whole embedding, the last the whole output layer.
  std::string algorithm;
  VocabularySlice slice;    // of this rank
  int first = 0, last = 0;  // pipeline ranks of the first and the last stage
  TensorPlan tensor = {};   // tensor mesh that shards the rows of one pipeline rank
  int64_t width = 0;        // C, unsharded
};

class VocabularyStages {
 public:
  /// Comm and model must outlive it.
  VocabularyStages(Comm& comm, const VocabularyEnds& ends, const Transformer& model);

  /// Starts a row with these microbatches. `load` returns the tokens of a microbatch that this rank holds. `logits` is
  /// StepInput::logits: if it is set, S computes logits, and the row has no Z.
  void begin(std::vector<int> microbatches, std::function<Microbatch(int)> load,
             std::function<void(const at::Tensor&)> logits);
  /// Returns when the input of the Action has arrived: a vocabulary Action, F of the first stage, or B or I of the
  /// last.
  void wait_for(const Action& action);
  /// Carries out a vocabulary Action.
  void carry_out(const Action& action);

  /// On the first stage's rank: its input, this rank's shard of [B,T,C]; later the gradient of that input, which is
  /// broadcast.
  at::Tensor embedding(int microbatch, at::IntArrayRef shape_BTC);
  void broadcast_embedding_gradient(int microbatch, const at::Tensor& dx_BTC);
  /// On the last stage's rank: the output of the final norm, which is broadcast; later returns its gradient.
  void broadcast_output(int microbatch, const at::Tensor& x_BTC);
  at::Tensor output_gradient(int microbatch, at::IntArrayRef shape_BTC);

  /// Waits for pending communication. Returns the row's sum of scaled losses, the same on all ranks.
  at::Tensor finish();

 private:
  bool is_first() const;
  bool is_last() const;
  size_t index_of(int microbatch) const;
  void post_output_broadcasts(size_t end);
  void post_gradient_broadcasts();

  Comm& comm_;
  const VocabularyEnds ends_;
  const Transformer& model_;
  const at::TensorOptions stream_;
  const SliceMesh mesh_;
  InputLayer input_;
  OutputLayer output_;
  std::vector<int> microbatches_;
  std::function<Microbatch(int)> load_;
  std::function<void(const at::Tensor&)> logits_;
  // Counters over microbatches_: posted broadcasts of the output layer's input, completed E, posted broadcasts of
  // embedding gradients, completed EB.
  size_t outputs_posted_ = 0, looked_up_ = 0, gradients_posted_ = 0, gradients_done_ = 0;
};

}  // namespace orthant

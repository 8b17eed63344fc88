// The ends of a pipeline whose vocabulary is cut over its ranks: the embedding in front of the first stage and the
// output layer behind the last, as the row's S, Z, T, TW, E and EB do them on every rank (schedule/barriers.h).
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
  std::string algorithm;     // of vocabulary_algorithms(); empty: the ends are whole, on the first and last stage
  VocabularySlice slice;     // this rank's
  int first = 0, last = 0;   // pipeline ranks of the first and the last stage
  TensorPlan tensor = {};    // of the ranks that have one pipeline rank's rows together
  int64_t width = 0;         // C, whole
};

class VocabularyStages {
 public:
  /// Comm and model must outlive it.
  VocabularyStages(Comm& comm, const VocabularyEnds& ends, const Transformer& model);

  /// A row begins that does these microbatches; `load` has the tokens that are here.
  void begin(std::vector<int> microbatches, std::function<Microbatch(int)> load);
  /// Returns when there is what it reads: one of the vocabulary's, F of the first stage, B or I of the last.
  void wait_for(const Action& action);
  void carry_out(const Action& action);

  /// At the first stage: its input, this rank's part of [B,T,C], and of that the gradient.
  at::Tensor embedding(int microbatch, at::IntArrayRef shape_BTC);
  void share_embedding_gradient(int microbatch, const at::Tensor& dx_BTC);
  /// At the last stage: what its norm makes, and of that the gradient.
  void share_output(int microbatch, const at::Tensor& x_BTC);
  at::Tensor output_gradient(int microbatch, at::IntArrayRef shape_BTC);

  /// Waits for what is under way; the row's sum of scaled losses, the same on all ranks.
  double finish();

 private:
  bool is_first() const;
  bool is_last() const;
  size_t place_of(int microbatch) const;
  void ask_for_outputs(size_t end);
  void ask_for_gradients();

  Comm& comm_;
  const VocabularyEnds ends_;
  const Transformer& model_;
  const at::TensorOptions stream_;
  const SliceMesh mesh_;
  InputLayer input_;
  OutputLayer output_;
  std::vector<int> microbatches_;
  std::function<Microbatch(int)> load_;
  // How many of microbatches_: the output layer's inputs asked for, E done, embeddings' gradients asked for, EB done.
  size_t outputs_asked_ = 0, looked_up_ = 0, gradients_asked_ = 0, gradients_done_ = 0;
};

}  // namespace orthant

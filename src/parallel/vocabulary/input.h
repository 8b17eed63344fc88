// The embedding over a vocabulary whose rows are cut over the pipeline's ranks: each looks up the tokens that it has,
// and their sum at the first stage's rank is the whole lookup, to the bit: all summands but one are zeros. Yeung et al.
// 2024, arXiv 2411.05288, section 4.
//
// Where a tensor mesh has the slice of a place together (slice_mesh.h), its ranks sum what columns have found, and each
// sends its part on; back, it gathers the gradient of all tokens that its rows may be hit by.
//
// Sends N C a microbatch and rank as reduce, and as broadcast of the gradient. Rows that are hit would be N C for all
// ranks together, but then what is sent would depend on the text, and a plan could not say it.
//
// Tied weights: the same slice here and in OutputLayer, one Weight, to which T and EB both add; no sum between ranks.
#pragma once

#include <map>
#include <vector>

#include "comm/comm.h"
#include "model/weights.h"
#include "parallel/vocabulary/layers_plan.h"
#include "parallel/vocabulary/slice_mesh.h"

namespace orthant {

struct InputPlan {
  VocabularySlice slice;
  Axes axes;     // of the ranks that the vocabulary is cut over
  int root = 0;  // position of the one that has the first stage
  SliceMesh mesh = {};  // as OutputPlan's
};

/// One rank's end; as OutputLayer, each collective goes up in microbatches on a lane of its own. A rank's steps for one
/// microbatch: E, at the root take_embedding; share_gradient, EB.
class InputLayer {
 public:
  /// Comm and table, [rows, C], must outlive it.
  InputLayer(Comm& comm, InputPlan plan, const Weight& table);

  /// Looks up tokens [N], with a mesh [B, T], int64; starts the sum. DataError for a token outside the vocabulary.
  /// Without gradient there is no EB, and nothing is kept.
  void E(int microbatch, const at::Tensor& tokens, bool with_gradient = true);
  /// At the root: waits for the embedding, [N, C]; with a mesh this rank's part of it, flat.
  at::Tensor take_embedding(int microbatch);
  /// Starts the broadcast of its gradient: at the root that itself, of any shape, elsewhere undefined.
  void share_gradient(int microbatch, const at::Tensor& dx);
  /// Waits for it and adds it to the table's.
  void EB(int microbatch);
  /// They return when there is what the first stage, and EB, read.
  void wait_for_embedding(int microbatch) { live(microbatch).sum_arrives.wait(); }
  void wait_for_gradient(int microbatch) { live(microbatch).gradient_arrives.wait(); }
  /// Waits for what is under way.
  void finish();

 private:
  struct Live {
    at::Tensor which, row;  // tokens that are here, and their rows
    std::vector<int64_t> part_shape;
    at::Tensor sum, gradient;
    Work sum_arrives, gradient_arrives;
    bool with_gradient = true;
  };
  void sweep();
  bool at_root() const;
  Live& live(int microbatch);

  Comm& comm_;
  const InputPlan plan_;
  const Weight& table_;
  Comm sums_, gradients_;  // lanes
  std::map<int, Live> live_;
};

}  // namespace orthant

// The embedding over a vocabulary whose rows are sharded over pipeline ranks: EmbeddingShard, and the sum on the first
// stage's rank. Yeung et al. 2024, arXiv 2411.05288, section 4.
//
// With a tensor mesh for each pipeline rank (slice_mesh.h), the ranks of the mesh sum the lookups of its columns and
// each sends its shard on. In backward they gather the gradient of all tokens that may read a row of theirs.
//
// A rank sends N C for a microbatch as a reduce, and N C as the broadcast of the gradient. Sending only the rows that
// were read would take N C for all ranks together. But then the bytes depend on the text and cannot be planned.
//
// Tied weights: this layer and OutputLayer hold the same slice in one Weight, to which T and EB both add. No sum
// between ranks is needed.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "model/weights.h"
#include "parallel/tensor/embedding_shard.h"
#include "parallel/vocabulary/layers_plan.h"

namespace orthant {

struct InputPlan {
  VocabularySlice slice;
  Axes axes;     // of the ranks that shard the vocabulary
  int root = 0;  // position of the rank with the first stage
  SliceMesh mesh = {};  // as in OutputPlan
};

/// One rank's end. As in OutputLayer, each collective has a channel of its own, on which microbatches must be in
/// increasing order. Calls for one microbatch: E; at the root take_embedding; broadcast_gradient; EB.
class InputLayer {
 public:
  /// Comm and table, [rows, C], must outlive it.
  InputLayer(Comm& comm, InputPlan plan, const Weight& table);

  /// Looks up int64 tokens [N], with a mesh [B, T], and starts the sum over ranks. DataError for a token outside the
  /// vocabulary. Without gradient nothing is kept, and EB must not be called.
  void E(int microbatch, const at::Tensor& tokens, bool with_gradient = true);
  /// At the root: waits for the embedding [N, C]; with a mesh, this rank's shard of it with one row a token.
  at::Tensor take_embedding(int microbatch);
  /// Starts the broadcast of the embedding's gradient: at the root dx of any shape, on other ranks undefined.
  void broadcast_gradient(int microbatch, const at::Tensor& dx);
  /// Waits for that gradient and adds it to the table's gradient.
  void EB(int microbatch);
  /// Wait for the data that the first stage and EB read.
  void wait_for_embedding(int microbatch) { live(microbatch).sum_arrives.wait(); }
  void wait_for_gradient(int microbatch) { live(microbatch).gradient_arrives.wait(); }
  /// Waits for all collectives.
  void finish();

 private:
  struct Live {
    std::optional<EmbeddingShard> shard;
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
  Comm sums_, gradients_;  // channels
  std::map<int, Live> live_;
};

}  // namespace orthant

// Both layers without a loss, for what is written token by token: the ranks that the vocabulary is cut over, as shard()
// cuts it, call them together, and all have the whole, or what columns have of the stream. Sends N C as all-reduce; a
// token's C as broadcast and its logits, but for the rank's own, as all-gather. A tensor mesh puts its parts together.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/comm.h"
#include "mesh/mesh.h"
#include "model/weights.h"
#include "parallel/vocabulary/slice_mesh.h"

namespace orthant {

struct WholeVocabulary {
  int64_t size = 0;
  Range rows;    // this rank's
  Axes axes;     // of the pipeline
  int root = 0;  // position of the one that has the last stage
  SliceMesh mesh = {};  // of the ranks that have the slice of one position together
};

/// Rows of tokens [...], [..., C], or their part.
at::Tensor whole_embedding(Comm& comm, const WholeVocabulary& vocabulary, const Weight& table,
                           const at::Tensor& tokens);

/// The logits [V] of one token. x [C], or its part: at the root what the last stage made; elsewhere memory for it.
at::Tensor whole_logits(Comm& comm, const WholeVocabulary& vocabulary, const Weight& head, at::Tensor x_C);

}  // namespace orthant

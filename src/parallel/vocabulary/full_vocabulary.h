// Embedding and full logits for generation, which needs no loss. All pipeline ranks that shard the vocabulary (by
// shard()) call these functions together, and all get the full result, or their column's part of the stream.
// compute_full_embedding() sends N C as an all-reduce. compute_full_logits() sends C as a broadcast, and all logits of
// the token but the rank's own as an all-gather. A tensor mesh gathers its shards in addition.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/comm.h"
#include "mesh/mesh.h"
#include "model/weights.h"
#include "parallel/vocabulary/slice_mesh.h"

namespace orthant {

struct FullVocabulary {
  int64_t size = 0;
  Range rows;           // this rank's
  Axes axes;            // of the pipeline
  int root = 0;         // position of the rank with the last stage
  SliceMesh mesh = {};  // of the ranks that together hold one pipeline rank's slice
};

/// Embeddings [..., C] of tokens [...]; with a tensor mesh, this rank's channels of them.
at::Tensor compute_full_embedding(Comm& comm, const FullVocabulary& vocabulary, const Weight& table,
                                  const at::Tensor& tokens);

/// Logits [V] of one token. x [C], or this rank's channels of it: at the root the output of the last stage, on the
/// other ranks memory that the broadcast overwrites.
at::Tensor compute_full_logits(Comm& comm, const FullVocabulary& vocabulary, const Weight& head, at::Tensor x_C);

}  // namespace orthant

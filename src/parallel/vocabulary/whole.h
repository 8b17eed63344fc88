// Both layers without a loss, for what is written token by token: the ranks that the vocabulary is cut over, as shard()
// cuts it, call them together, and all have the whole. Sends N C as all-reduce; a token's C as broadcast and its
// logits, but for the rank's own, as all-gather.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/comm.h"
#include "model/weights.h"

namespace orthant {

struct WholeVocabulary {
  int64_t size = 0;
  Axes axes;
  int root = 0;  // position of the one that has the last stage
};

/// Rows of tokens [...], [..., C].
at::Tensor whole_embedding(Comm& comm, const WholeVocabulary& vocabulary, const Weight& table,
                           const at::Tensor& tokens);

/// The logits [V] of one token. x [C]: at the root what the last stage made; elsewhere memory for it.
at::Tensor whole_logits(Comm& comm, const WholeVocabulary& vocabulary, const Weight& head, at::Tensor x_C);

}  // namespace orthant

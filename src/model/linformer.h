// Linformer: learned projections compress the keys and the values of a sequence to K_p summary rows, and queries attend
// to those. Compute and memory therefore grow linearly with the sequence length.
//
// Wang, Li, Khabsa, Fang, Ma 2020, "Linformer: Self-Attention with Linear Complexity" (arXiv 2006.04768), section 4,
// with projections shared over heads: K' = E^T K, V' = F^T V, softmax(q K'^T / sqrt(D)) V'. E and F are [L, K_p]. Every
// summary row mixes all L tokens, later ones too, so a causal model cannot use it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "model/attention_core.h"

namespace orthant {

/// The shard of each sequence on this rank. `begin` returns its first position, given the sequence length; `sum` sums a
/// tensor over all shards, in place. Leave both empty if sequences are unsharded.
struct SequenceShard {
  std::function<int64_t(int64_t length)> begin;
  std::function<void(const at::Tensor&)> sum;
};

/// E and F are the weights of the AttentionShape: the rows of this rank's tokens, [T, K_p]. Padding enters no summary.
/// Forward calls part.sum once, with K' and V' in one tensor [2,B,K,K_p,D] in at least float32. Backward calls it once
/// with their gradients, so that the gradients of E and F are complete for these rows.
AttentionCore linformer_attention(SequenceShard part = {});

}  // namespace orthant

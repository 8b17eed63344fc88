// Linformer: learned projections make a few summary rows of a sequence's keys and of its values, and queries attend to
// those, so that nothing grows with the square of the length.
//
// Wang, Li, Khabsa, Fang, Ma 2020, "Linformer: Self-Attention with Linear Complexity" (arXiv 2006.04768), section 4,
// with projections shared over heads: K' = E^T K, V' = F^T V, softmax(q K'^T / sqrt(D)) V'. E and F are [L, K_p]: every
// summary row mixes all L tokens, later ones too, so a causal model cannot use it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "model/attention_core.h"

namespace orthant {

/// The part of each sequence that is here: its first place, of a sequence of some length, and how sums over all parts
/// come about, in place. Neither where sequences are whole.
struct SequencePart {
  std::function<int64_t(int64_t length)> begin;
  std::function<void(const at::Tensor&)> sum;
};

/// E and F are the shape's weights: the rows of the tokens that are here, [T, K_p]. Padding goes into no summary. Sums
/// are asked for once in forward, of K' and V' in one tensor [2,B,K,K_p,D] in the precision of sums, and once in
/// backward, of their gradients; gradients of E and F are then complete for these rows.
AttentionCore linformer_attention(SequencePart part = {});

}  // namespace orthant

// Attention of a block of queries to a block of keys, with the log-sum-exp that merges partial results over blocks of
// keys. Attention on one device and every sequence-parallel form of it call these functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/visibility.h"

namespace orthant {

/// The result of attention: softmax(scores) v over the keys visible to each query, with the scores of ScoreRule. lse is
/// the natural logarithm of the sum of exponentials, in float32 (float64 for float64). A query without visible keys has
/// out 0 and lse -inf.
struct PartialAttention {
  at::Tensor out_BHTD, lse_BHT;
};

/// How products of queries and keys become scores: scale q k, or c tanh(scale q k / c) with a cap c, as in Gemma 2.
struct ScoreRule {
  double scale = 1;
  double softcap = 0;  // 0: no cap
};

/// The kernel that computes attention. flash: ATen's flash kernel, which never stores the score matrix. That kernel has
/// no cap. Capped scores are therefore stored for a block of queries at a time, in the precision of lse. plain: the
/// definition in float64, the reference for tests.
enum class AttentionKernel { flash, plain };

/// Attention of q [B,H,T,D] to k and v [B,K,S,D]. K must divide H; query head h uses key head floor(h K / H). tiles is
/// attention_tiles() for these queries and keys. The output has the dtype of q.
PartialAttention attend(AttentionKernel kernel, const at::Tensor& q_BHTD, const at::Tensor& k_BKSD,
                        const at::Tensor& v_BKSD, const std::vector<AttentionTile>& tiles, const ScoreRule& rule);

struct AttentionGradients {
  at::Tensor dq_BHTD, dk_BKSD, dv_BKSD;
};

/// The gradients of q, k and v through one block of keys, given the output and log-sum-exp over all blocks. Both
/// kernels recompute the probabilities from them (Dao et al. 2022, "FlashAttention", algorithm 4). The gradients have
/// the dtype of lse, because the caller adds those of other blocks to them.
AttentionGradients attend_backward(AttentionKernel kernel, const at::Tensor& dout_BHTD, const at::Tensor& q_BHTD,
                                   const at::Tensor& k_BKSD, const at::Tensor& v_BKSD, const at::Tensor& out_BHTD,
                                   const at::Tensor& lse_BHT, const std::vector<AttentionTile>& tiles,
                                   const ScoreRule& rule);

/// As attend_backward(), when there is only one block of keys. The gradients have the dtype of q. dk and dv have K
/// heads on a CUDA device, except in float64 or with a cap; else one for every query head, and the caller sums each
/// group.
AttentionGradients attend_backward_single_block(AttentionKernel kernel, const at::Tensor& dout_BHTD,
                                                const at::Tensor& q_BHTD, const at::Tensor& k_BKSD,
                                                const at::Tensor& v_BKSD, const at::Tensor& out_BHTD,
                                                const at::Tensor& lse_BHT, const std::vector<AttentionTile>& tiles,
                                                const ScoreRule& rule);

/// Merges the result of another block of keys into `sum`; both have the precision of lse:
/// out <- out + w (block - out), lse <- log(e^lse + e^block_lse), w = e^block_lse / (e^lse + e^block_lse).
void merge_partial_attention(PartialAttention& sum, const PartialAttention& block);

}  // namespace orthant

// Attention of some queries to some keys, with the log-sum-exp by which partial results over blocks of keys are merged:
// the operator under one device's attention and under every parallel form of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "model/visibility.h"

namespace orthant {

/// softmax(scale q k^T) v over the keys that each query sees. lse is the natural logarithm of the sum of exponentials,
/// float32 (float64 for float64); a query that sees no key has out 0 and lse -inf.
struct Attended {
  at::Tensor out_BHTD, lse_BHT;
};

/// By which kernel. flash: ATen's, which never holds a row of scores. plain: by definition, in float64; the oracle.
enum class AttentionKernel { flash, plain };

/// q [B,H,T,D], k and v [B,K,S,D], K dividing H: query head h reads key head h K/H. The tiles are attention_tiles() of
/// the queries and of these keys. The output has the type of q.
Attended attend(AttentionKernel kernel, const at::Tensor& q_BHTD, const at::Tensor& k_BKSD, const at::Tensor& v_BKSD,
                const std::vector<AttentionTile>& tiles, double scale);

struct AttentionGradients {
  at::Tensor dq_BHTD, dk_BKSD, dv_BKSD;
};

/// The share of one block of keys, from the output and log-sum-exp over all blocks: both kernels recompute the
/// probabilities from them (Dao et al. 2022, "FlashAttention", algorithm 4). The gradients have the precision of lse,
/// for other blocks' shares are added to them.
AttentionGradients attend_backward(AttentionKernel kernel, const at::Tensor& dout_BHTD, const at::Tensor& q_BHTD,
                                   const at::Tensor& k_BKSD, const at::Tensor& v_BKSD, const at::Tensor& out_BHTD,
                                   const at::Tensor& lse_BHT, const std::vector<AttentionTile>& tiles, double scale);

/// The same where there is no other block: gradients have the type of q, and dk and dv a head for every query head, to
/// be summed by whoever reads them next.
AttentionGradients attend_backward_alone(AttentionKernel kernel, const at::Tensor& dout_BHTD, const at::Tensor& q_BHTD,
                                         const at::Tensor& k_BKSD, const at::Tensor& v_BKSD, const at::Tensor& out_BHTD,
                                         const at::Tensor& lse_BHT, const std::vector<AttentionTile>& tiles,
                                         double scale);

/// Merges what a block of keys adds into the sums so far, both in the precision of lse:
/// out <- out + w (block - out), lse <- log(e^lse + e^block_lse), w = e^block_lse / (e^lse + e^block_lse).
void merge_attended(Attended& sum, const Attended& block);

}  // namespace orthant

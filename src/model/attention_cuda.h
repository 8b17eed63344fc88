// One tile of attention on a CUDA device, by ATen's kernels. The kernels differ in causal alignment, shape of the
// log-sum-exp and masks; these two functions hide the differences.
#pragma once

#include <optional>

#include "model/attention.h"

namespace orthant::detail {

/// Attention of one tile. bf16 and fp16 tiles without bias use cuDNN's kernel if heads have at most 128 elements
/// and there are two keys or more, else ATen's flash kernel; all others use the memory-efficient kernel. q is
/// [B,H,T,D], k and v are [B,K,S,D]; bias is [1,1,T,S] and is added to the scores. Every query must see at least one
/// key. No kernel takes float64. LogicError unless 8 divides D, K divides H, and a causal tile has as many queries as
/// keys.
PartialAttention attend_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                             const std::optional<at::Tensor>& bias, double scale);

/// Gradients of one tile, from the output and log-sum-exp over all blocks of keys. dk and dv have K heads. Sums have no
/// fixed order, so the bits of two runs may differ.
AttentionGradients attend_cuda_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, bool causal,
                                        const std::optional<at::Tensor>& bias, double scale);

/// Repeats key heads of kv [B,K,S,D], so that each query head has one.
at::Tensor per_query_head(const at::Tensor& kv_BKSD, int64_t heads);

}  // namespace orthant::detail

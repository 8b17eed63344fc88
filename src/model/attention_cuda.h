// One tile of attention on a CUDA device, by ATen's kernels. The kernels differ in causal alignment, shape of the
// log-sum-exp and masks; these two functions hide the differences.
#pragma once

#include <optional>

#include "model/attention.h"

namespace orthant::detail {

/// Attention of one tile. For bf16 and fp16 tiles without bias, uses cuDNN's kernel if heads have at most 128 elements,
/// else ATen's flash kernel; for all others, the memory-efficient kernel. q is [B,H,T,D], k and v are [B,K,S,D]; bias is
/// [1,1,queries,keys] and is added to the scores. Every query must see at least one key. LogicError unless 8 divides D,
/// K divides H, and a causal tile has as many queries as keys.
PartialAttention attend_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                             const std::optional<at::Tensor>& bias, double scale);

/// Gradients of one tile, those of k and v with K heads, from the output and log-sum-exp over all blocks of keys. Sums over keys use atomic additions
/// in no fixed order, unless at::globalContext() requests deterministic algorithms.
AttentionGradients attend_cuda_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, bool causal,
                                        const std::optional<at::Tensor>& bias, double scale);

}  // namespace orthant::detail

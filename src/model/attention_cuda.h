// One tile of attention on a CUDA device, by ATen's kernels. Each has its own habits (causal alignment, shape of the
// log-sum-exp, masks); they end here.
#pragma once

#include <optional>

#include "model/attention.h"

namespace orthant::detail {

/// Flash where the type and a tile without a mask of its own allow it, memory-efficient otherwise. q, k, v [B,H,T,D]
/// with as many key heads as query heads; causal: as many queries as keys; bias [1,1,queries,keys], added to the
/// scores. Every query sees a key. LogicError unless D is a multiple of 8.
Attended attend_cuda(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                     const std::optional<at::Tensor>& bias, double scale);

/// From the output and log-sum-exp over all blocks. Sums over keys are made by atomic additions, in no fixed order,
/// unless at::globalContext() asks for deterministic algorithms.
AttentionGradients attend_cuda_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const at::Tensor& out, const at::Tensor& lse, bool causal,
                                        const std::optional<at::Tensor>& bias, double scale);

}  // namespace orthant::detail

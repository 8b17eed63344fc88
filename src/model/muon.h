// The update of Muon for one matrix: momentum, then orthogonalization. Jordan et al. 2024, "Muon: an optimizer for
// hidden layers in neural networks"; the scale of the update from Liu et al. 2025, "Muon is scalable for LLM training",
// arXiv 2502.16982, section 2.2.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant {

/// A matrix [rows, cols] nearly U V^T for m = U S V^T: its singular values lie near 1. Five Newton-Schulz iterations
/// X <- a X + (b A + c A^2) X with A = X X^T, on m divided by its Frobenius norm, in m's dtype.
at::Tensor orthogonalized(const at::Tensor& m);

struct MuonStep {
  at::Tensor weights;          // [rows, cols], updated
  at::Tensor gradient;         // not changed
  at::Tensor momentum_buffer;  // updated; zero before the first step
  double lr, momentum, weight_decay;
  double gradient_scale = 1.0;  // factor applied to the gradient first; the clip factor
};
/// torch.optim.Muon with Nesterov momentum and adjust_lr_fn = "match_rms_adamw", but in the weights' dtype:
/// b = momentum b + (1 - momentum) g, u = momentum b + (1 - momentum) g, w *= 1 - lr decay,
/// w -= lr 0.2 sqrt(max(rows, cols)) orthogonalized(u). So the update has the size of AdamW's, and both can have one
/// learning rate.
void muon(const MuonStep& step);

}  // namespace orthant

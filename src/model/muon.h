// The update of Muon for one matrix: momentum, then orthogonalization. Jordan et al. 2024, "Muon: an optimizer for
// hidden layers in neural networks"; the scale of the update from Liu et al. 2025, "Muon is scalable for LLM training",
// arXiv 2502.16982, section 2.2.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant {

/// Returns nearly U V^T for m = U S V^T: a matrix [rows, cols] whose singular values lie near 1. It runs five
/// Newton-Schulz iterations X <- a X + (b A + c A^2) X with A = X X^T on m divided by its Frobenius norm, in m's dtype.
/// If m is moved in, it takes update_elements() of temporary memory, the result included.
at::Tensor orthogonalized(at::Tensor m);

/// One matrix with its hyperparameters.
struct MuonStep {
  at::Tensor weights;          // [rows, cols], updated
  at::Tensor gradient;         // not changed
  at::Tensor momentum_buffer;  // updated; zero before the first step
  double lr, momentum, weight_decay;
  double gradient_scale = 1.0;  // factor applied to the gradient first; the clip factor
};
/// Updates the matrix as torch.optim.Muon with adjust_lr_fn = "match_rms_adamw", but iterates in the weights' dtype
/// instead of bfloat16. With momentum p: the buffer becomes b = p b + (1 - p) g; then u = p b + (1 - p) g (Nesterov),
/// w *= 1 - lr decay, and w -= lr 0.2 sqrt(max(rows, cols)) orthogonalized(u). So the update has the size of AdamW's,
/// and both can have one learning rate.
void muon(const MuonStep& step);

}  // namespace orthant

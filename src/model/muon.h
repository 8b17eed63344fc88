// The update of Muon: momentum, then orthogonalization. Jordan et al. 2024, "Muon: an optimizer for hidden layers in
// neural networks"; the scale of the update from Liu et al. 2025, "Muon is scalable for LLM training", arXiv
// 2502.16982, section 2.2. It updates as torch.optim.Muon with adjust_lr_fn = "match_rms_adamw", but iterates in the
// dtype of the master weights instead of bfloat16.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/optimizer_plan.h"

namespace orthant {

/// Returns nearly U V^T for m = U S V^T: a matrix [rows, cols] whose singular values lie near 1. It runs five
/// Newton-Schulz iterations X <- a X + (b A + c A^2) X with A = X X^T on m divided by its Frobenius norm, in m's dtype.
/// If m is moved in, it takes update_elements() of temporary memory, the result included.
at::Tensor orthogonalized(at::Tensor m);

/// Orthogonalizes the matrices that this rank updates. The base class requires full matrices; a derived class may
/// exchange shards with other ranks.
class Orthogonalizer {
 public:
  virtual ~Orthogonalizer() = default;
  /// True if an update waits for other ranks.
  virtual bool exchanges() const { return false; }
  /// Divides the matrices, given as indices of parameters, into rounds whose updates are computed together.
  virtual std::vector<MatrixRound> rounds(const std::vector<size_t>& matrices) const;
  /// Returns this rank's shards of a round's orthogonalized matrices, given its shards of the matrices. If `shards` is
  /// moved in, their memory is free before the iterations.
  virtual std::vector<at::Tensor> orthogonalized(const MatrixRound& round, std::vector<at::Tensor> shards) const;
};

/// Adds a gradient times `scale`, one number, to the momentum buffer, and returns the matrix to be orthogonalized. With
/// momentum p and scaled gradient g: the buffer b becomes b' = p b + (1 - p) g, and the result is p b' + (1 - p) g
/// (Nesterov). Elementwise, so the tensors may be shards.
at::Tensor muon_momentum(const at::Tensor& gradient, const at::Tensor& buffer, double momentum,
                         const at::Tensor& scale);
/// Updates the weights: w *= 1 - lr decay, and w -= lr 0.2 sqrt(larger_side) update. The update then has the size of
/// AdamW's, and both can have one learning rate. Elementwise; larger_side is that of the full matrix.
void apply_muon(const at::Tensor& weights, const at::Tensor& update, int64_t larger_side, double lr,
                double weight_decay);

}  // namespace orthant

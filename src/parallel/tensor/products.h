// The three products of matrices that are sharded over a mesh with the axes "column", "row" and "depth" (Xu et al.
// 2021, "Optimus", arXiv 2104.05343, section 2; Wang et al. 2021, "Tesseract", 2105.14500, section 3).
//
// Let (k, i, j) be a rank's depth, row and column. Of a matrix of tokens [T, K] it holds block (k, i) of the rows and
// block j of the columns; of a weight [K, N], block i of the rows and block j of the columns. Mesh sizes need not
// divide the extents (see shard() in mesh/mesh.h). A layer's forward, the gradient of its tokens and the gradient of
// its weight are one of these products each. On four ranks, started by torchrun, mpirun or srun:
//
//   const auto launch = detect_launch(process_environment, parent_identity());         // launch/launch.h
//   Comm comm(Mesh({{"column", 2}, {"row", 2}, {"depth", 1}}), launch->rank, connect(*launch));
//   // This rank's shards of the unsharded full_x [T,K] and full_w [K,N] (comm/redistribute.h).
//   const at::Tensor x = redistribute(comm, full_x, unsharded_layout(2), token_matrix(), {T, K});
//   const at::Tensor w = redistribute(comm, full_w, unsharded_layout(2), weight_matrix(), {K, N});
//   const at::Tensor y = TensorProducts(comm, ProductForm::stationary).ab(x, w, K);
//   const at::Tensor full_y = redistribute(comm, y, token_matrix(), unsharded_layout(2), {T, N});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/comm.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// Layouts of a matrix of tokens [T, K], and of a weight [K, N].
Layout token_matrix();
Layout weight_matrix();

/// Every rank of the mesh must call the same products in the same order. K is the full extent of the dim that columns
/// shard in one operand and rows in the other. A rank receives (q_c-1) a + (q_r-1) w elements for each product, where
/// a = T K / (d q_r q_c) and w = K N / (q_r q_c). They arrive in panels, the next one while the present one is
/// multiplied: panels of tokens if there are enough tokens (stationary), or panels of K for both operands (summa).
/// bfloat16 accumulates in float32, but abt rounds each column's summand to bfloat16 before the sum over columns.
class TensorProducts {
 public:
  /// The Comm must outlive it. panel_bytes: smallest panel of tokens, in bytes of the full width.
  TensorProducts(Comm& comm, ProductForm form, int64_t panel_bytes = TensorPlan{}.panel_bytes);

  /// [T, K] [K, N] -> [T, N]. A is gathered over columns, B over rows.
  at::Tensor ab(const at::Tensor& a_TK, const at::Tensor& b_KN, int64_t K) const;
  /// [T, N] [K, N]^T -> [T, K]. B is gathered over rows, the result summed over columns.
  at::Tensor abt(const at::Tensor& a_TN, const at::Tensor& b_KN, int64_t K) const;
  /// [T, K]^T [T, N] -> [K, N], float32 or float64. A is gathered over columns, the result summed over rows. The caller
  /// sums it over depth, once a step.
  at::Tensor atb(const at::Tensor& a_TK, const at::Tensor& b_TN, int64_t K) const;

 private:
  bool summa() const { return mesh_.plan().form == ProductForm::summa; }

  TensorMesh mesh_;
};

}  // namespace orthant

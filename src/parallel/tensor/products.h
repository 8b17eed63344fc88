// The three products of matrices that no rank holds whole, on a mesh with the axes "column", "row" and "depth"
// (Xu et al. 2021, "Optimus", arXiv 2104.05343, section 2; Wang et al. 2021, "Tesseract", 2105.14500, section 3).
// Rank (k, i, j) holds of a matrix of tokens [T, K] the rows of (k, i) and the columns of j, and of a weight [K, N] the
// rows of i and the columns of j; extents need not divide (mesh's shard()). Forward, the gradient of tokens and the
// gradient of a weight are one of these each. On four ranks, started by torchrun, mpirun or srun:
//
//   const auto launch = detect_launch(process_environment, parent_key());         // comm/launch.h
//   Comm comm(Mesh({{"column", 2}, {"row", 2}, {"depth", 1}}), launch->rank, connect(*launch));
//   const at::Tensor x = redistribute(comm, whole_x, whole(2), token_matrix(), {T, K}),   // comm/redistribute.h: cuts
//                    w = redistribute(comm, whole_w, whole(2), weight_matrix(), {K, N});  // out what this rank holds
//   const at::Tensor y = TensorProducts(comm, ProductForm::stationary).ab(x, w, K);
//   const at::Tensor whole_y = redistribute(comm, y, token_matrix(), whole(2), {T, N});  // if it must be whole
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/comm.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// How ranks hold a matrix of tokens [T, K], and a weight [K, N].
Layout token_matrix();
Layout weight_matrix();

/// Every rank of the mesh calls the same products in the same order. K: the whole extent of what is cut over columns in
/// one operand and over rows in the other. Words received, a = T K / (d q_r q_c), w = K N / (q_r q_c): each product
/// (q_c-1) a + (q_r-1) w, in panels, the next under way while the present one is multiplied: of the tokens, where these
/// are many (stationary), or of K and both operands (summa). bfloat16 is added up in float32,
/// of abt's sum over columns each summand rounded first.
class TensorProducts {
 public:
  /// The Comm must outlive it. No panel of tokens is smaller than so many bytes of the whole width.
  TensorProducts(Comm& comm, ProductForm form, int64_t panel_bytes = TensorPlan{}.panel_bytes);

  /// [T, K] [K, N] -> [T, N]. A is gathered over columns, B over rows.
  at::Tensor ab(const at::Tensor& a_TK, const at::Tensor& b_KN, int64_t K) const;
  /// [T, N] [K, N]^T -> [T, K]. B is gathered over rows, the result summed over columns.
  at::Tensor abt(const at::Tensor& a_TN, const at::Tensor& b_KN, int64_t K) const;
  /// [T, K]^T [T, N] -> [K, N], float32 or wider. A is gathered over columns, the result summed over rows; its sum over
  /// depth is the caller's, once a step.
  at::Tensor atb(const at::Tensor& a_TK, const at::Tensor& b_TN, int64_t K) const;

 private:
  bool summa() const { return mesh_.plan().form == ProductForm::summa; }

  TensorMesh mesh_;
};

}  // namespace orthant

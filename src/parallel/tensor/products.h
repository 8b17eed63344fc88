// The three products of matrices that no rank holds whole, on a mesh with the axes "column", "row" and "depth"
// (Xu et al. 2021, "Optimus", arXiv 2104.05343, section 2; Wang et al. 2021, "Tesseract", 2105.14500, section 3).
// Rank (k, i, j) holds of a matrix of tokens [T, K] the rows of (k, i) and the columns of j, and of a weight [K, N] the
// rows of i and the columns of j; extents need not divide (mesh's shard()). Forward, the gradient of tokens and the
// gradient of a weight are one of these each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/comm.h"
#include "parallel/tensor/plan.h"

namespace orthant {

/// Every rank of the mesh calls the same products in the same order. K: the whole extent of what is cut over columns in
/// one operand and over rows in the other. Words received, a = T K / (d q_r q_c), w = K N / (q_r q_c): each product
/// (q_c-1) a + (q_r-1) w, by one collective an operand (stationary), or one a panel and operand (summa), the next
/// under way while the present one is multiplied. bfloat16 is added up in float32.
class TensorProducts {
 public:
  /// The Comm must outlive it.
  TensorProducts(Comm& comm, ProductForm form) : comm_(comm), form_(form) {}

  /// [T, K] [K, N] -> [T, N]. A is gathered over columns, B over rows.
  at::Tensor ab(const at::Tensor& a_TK, const at::Tensor& b_KN, int64_t K) const;
  /// [T, N] [K, N]^T -> [T, K]. B is gathered over rows, the result summed over columns.
  at::Tensor abt(const at::Tensor& a_TN, const at::Tensor& b_KN, int64_t K) const;
  /// [T, K]^T [T, N] -> [K, N], float32 or wider. A is gathered over columns, the result summed over rows; its sum over
  /// depth is the caller's, once a step.
  at::Tensor atb(const at::Tensor& a_TK, const at::Tensor& b_TN, int64_t K) const;

 private:
  Comm& comm_;
  ProductForm form_;
};

}  // namespace orthant

// Products that keep their largest operand in place. The stream's tokens move in panels, gathered over columns or
// summed over them, each while another panel is multiplied. Weights are gathered in full over rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "parallel/tensor/mesh.h"
#include "parallel/tensor/panels.h"

namespace orthant {

/// Panels of [B,T,..] tensors. One rank's shard is [B,T,C_j], or [B,T_j,C] if columns shard the tokens.
class TokenPanels {
 public:
  /// sequences x tokens: the tokens of all columns, with `tokens` of each sequence; width: the stream's full width;
  /// summed: whether the product also sums the stream over columns.
  TokenPanels(const TensorMesh& mesh, int64_t sequences, int64_t tokens, int64_t width, bool summed,
              int64_t element_bytes);

  const std::vector<Range>& all() const { return stream_.panels; }
  /// Starts gathering the panel over columns, [.., .., width], from this rank's shard of the stream.
  Redistribution gather(const at::Tensor& part_BTC, const Range& panel) const;
  /// The panel's rows [n, O] of a tensor that has all tokens, in the row order of gather().
  at::Tensor rows(const at::Tensor& x_BTO, const Range& panel) const;
  /// Writes the product a b into the panel's rows of y. The first call allocates y.
  void multiply(at::Tensor& y_BTO, const Range& panel, const at::Tensor& a_NC, const at::Tensor& b_CO) const;

 private:
  friend class StreamSum;
  const TensorMesh& mesh_;
  const int64_t sequences_, tokens_, width_;
  const StreamPanels stream_;
};

/// This rank's shard of the stream, as the sum over columns of partial sums that are sent panel by panel.
class StreamSum {
 public:
  /// The panels must outlive it.
  explicit StreamSum(const TokenPanels& panels) : panels_(panels) {}
  /// Starts the sum of the panel over columns; rows [n, width] are this column's partial sum.
  void send(const Range& panel, const at::Tensor& rows_NC);
  at::Tensor finish();

 private:
  const TokenPanels& panels_;
  PendingSum<Redistribution> sum_;
  at::Tensor part_;  // [sequences, tokens, ..] of the panels
};

/// A matrix whose gather starts early: get() waits for it at the first use.
class Arriving {
 public:
  explicit Arriving(Redistribution move) : move_(std::move(move)) {}
  const at::Tensor& get() {
    if (!matrix_.defined()) matrix_ = move_.wait();
    return matrix_;
  }

 private:
  Redistribution move_;
  at::Tensor matrix_;
};

/// Gathers [B,T,K_j] over columns and multiplies it by [K,O]: [B,T,O]. matrix_KO() is called when the product needs it.
at::Tensor gather_and_multiply(const TensorMesh& mesh, const at::Tensor& part_BTK, int64_t K,
                               const std::function<at::Tensor()>& matrix_KO);
/// Multiplies [B,T,O] by [O,K] and sums over columns: this rank's shard of the stream.
at::Tensor multiply_and_sum(const TensorMesh& mesh, const at::Tensor& x_BTO,
                            const std::function<at::Tensor()>& matrix_OK);

inline at::Tensor flat(const at::Tensor& x) {
  const auto shape = x.sizes();  // -1 is ambiguous for a tensor without elements, which a rank may hold
  return x.reshape({c10::multiply_integers(shape.begin(), shape.end() - 1), shape.back()});
}

}  // namespace orthant

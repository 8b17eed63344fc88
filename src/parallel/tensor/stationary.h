// Products whose largest operand stays where it is: the stream's tokens pass by in panels, gathered over columns or
// summed over them, each while another is multiplied; weights come whole from the rows that hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "parallel/tensor/mesh.h"
#include "parallel/tensor/panels.h"

namespace orthant {

/// Panels of [B,T,..] tensors, of which the part of one rank has [B,T,C_j], or [B,T_j,C] where columns cut the tokens.
class TokenPanels {
 public:
  /// So many tokens of every sequence in all; the whole width of the stream; whether it is summed over columns, too.
  TokenPanels(const TensorMesh& mesh, int64_t sequences, int64_t tokens, int64_t width, bool summed,
              int64_t element_bytes);

  const std::vector<Range>& all() const { return stream_.panels; }
  /// The panel of all columns, [.., .., width], given this rank's part of the stream.
  Redistribution gather(const at::Tensor& part_BTC, const Range& panel) const;
  /// The panel's rows [n, O] of what has all tokens, in the order of gather().
  at::Tensor rows(const at::Tensor& x_BTO, const Range& panel) const;
  /// The panel's rows of y become a b; y is made by the first.
  void multiply(at::Tensor& y_BTO, const Range& panel, const at::Tensor& a_NC, const at::Tensor& b_CO) const;

 private:
  friend class StreamSum;
  const TensorMesh& mesh_;
  const int64_t sequences_, tokens_, width_;
  const StreamPanels stream_;
};

/// This rank's part of the stream, as the sum over columns of what each sends panel by panel.
class StreamSum {
 public:
  /// The panels must outlive it.
  explicit StreamSum(const TokenPanels& panels) : panels_(panels) {}
  /// One column's rows [n, width] of the panel's sum.
  void send(const Range& panel, const at::Tensor& rows_NC);
  at::Tensor finish();

 private:
  const TokenPanels& panels_;
  PendingSum<Redistribution> sum_;
  at::Tensor part_;  // [sequences, tokens, ..] of the panels
};

/// A matrix that is asked for before it is needed: waits at the first use.
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

/// [B,T,K_j] gathered over columns, times [K,O]: [B,T,O]. The matrix is asked for once it is needed.
at::Tensor gather_and_multiply(const TensorMesh& mesh, const at::Tensor& part_BTK, int64_t K,
                               const std::function<at::Tensor()>& matrix_KO);
/// [B,T,O] times [O,K], summed over columns: the stream's part.
at::Tensor multiply_and_sum(const TensorMesh& mesh, const at::Tensor& x_BTO,
                            const std::function<at::Tensor()>& matrix_OK);

inline at::Tensor flat(const at::Tensor& x) {
  const auto shape = x.sizes();  // with no column here, -1 would say nothing
  return x.reshape({c10::multiply_integers(shape.begin(), shape.end() - 1), shape.back()});
}

}  // namespace orthant

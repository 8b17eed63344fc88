// A tensor mesh that stands at one place of the pipeline and has that place's slice of the vocabulary together: columns
// cut the slice's rows once more, rows the width of the weights, and both the stream, as everywhere in the model
// (parallel/tensor/mesh.h). What it sends stays within the place; pipelines go from like to like, and send less.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/weights.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// One rank's end; of a slice that one rank has alone, all of it does nothing and returns what it is given.
class SliceMesh {
 public:
  SliceMesh() = default;
  /// width: C, whole. The Comm must outlive it.
  SliceMesh(Comm& comm, const TensorPlan& plan, int64_t width);

  bool alone() const { return !mesh_; }
  int columns() const { return mesh_ ? mesh_->plan().columns : 1; }
  /// Of the stream of so many sequences and tokens what is here: [B, T, C_j], [B, T_j, C], or all.
  std::vector<int64_t> part_shape(int64_t sequences, int64_t tokens) const;
  /// All tokens and channels [N, C] of a part [B, T', C'], an all-gather over columns; and the part of a sum over
  /// columns, a reduce-scatter, or an all-reduce where nothing cuts the stream.
  at::Tensor gather(const at::Tensor& part_BTC) const;
  at::Tensor sum(const at::Tensor& summand_NC, int64_t sequences) const;
  /// Of numbers of all tokens those whose tokens are in the part.
  at::Tensor part(const at::Tensor& numbers_N, int64_t sequences) const;
  /// What each column says, stacked: [columns, ...], an all-gather.
  at::Tensor of_columns(const at::Tensor& own) const;

  /// What the first row has, which others may have rounded otherwise, is what all have.
  void take_first_row(const at::Tensor& numbers) const;

  /// The weight's rows that are this column's, in the whole width: an all-gather over rows.
  at::Tensor whole(const Weight& weight) const;
  /// Where products for the gradient of those are added: where rows cut nothing, the weight's own, begun anew if it is
  /// fresh and `adds`; and, once all have been, the sum over rows, a reduce-scatter.
  at::Tensor begin_gradient(const Weight& weight, bool adds) const;
  void finish_gradient(const Weight& weight, const at::Tensor& sum) const;

 private:
  bool rows() const { return mesh_ && mesh_->plan().rows > 1; }

  std::optional<TensorMesh> mesh_;
  int64_t width_ = 0;
};

}  // namespace orthant

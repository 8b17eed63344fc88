// SliceMesh: the redistributions of a tensor mesh whose ranks together hold the vocabulary, or one pipeline rank's
// slice of it. Columns shard the rows of the tables, rows shard their width, and both treat the stream as everywhere in
// the model (mesh.h). Its messages stay within the pipeline rank. Between pipeline ranks each rank of the mesh
// exchanges only its own shard, with its counterpart of the same mesh coordinates.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/weights.h"
#include "parallel/tensor/mesh.h"

namespace orthant {

/// One rank's end. If a single rank holds the slice, all functions send nothing and return their argument, reshaped.
class SliceMesh {
 public:
  SliceMesh() = default;
  /// width: C, unsharded. The Comm must outlive it.
  SliceMesh(Comm& comm, const TensorPlan& plan, int64_t width);

  bool alone() const { return !mesh_; }
  int columns() const { return mesh_ ? mesh_->plan().columns : 1; }
  /// This column's rows of a vocabulary that columns shard.
  Range column_rows(int64_t vocabulary) const { return shard(vocabulary, columns(), mesh_ ? mesh_->column() : 0); }
  /// Shape of this rank's shard of the stream: [B, T, C_j], [B, T_j, C], or [B, T, C].
  std::vector<int64_t> part_shape(int64_t sequences, int64_t tokens) const;
  /// gather: the full stream [N, C] from shards [B, T', C'], an all-gather over columns. sum: this rank's shard of the
  /// sum over columns, a reduce-scatter, or an all-reduce if columns do not shard the stream.
  at::Tensor gather(const at::Tensor& part_BTC) const;
  at::Tensor sum(const at::Tensor& summand_NC, int64_t sequences) const;
  /// The entries of numbers_N (one for each token) whose tokens are in this rank's shard of the stream.
  at::Tensor part(const at::Tensor& numbers_N, int64_t sequences) const;
  /// As in TensorMesh.
  at::Tensor gather_columns(const at::Tensor& own) const;

  /// Logits [N,V] from this column's [N,V_j], where the vocabulary is sharded over `outer` axes first and over columns
  /// second: an all-gather. Row 0 then broadcasts them, because rows may have rounded differently.
  at::Tensor gather_logits(Comm& comm, const at::Tensor& own_NV, Axes outer, int64_t vocabulary) const;

  /// The tensor that moves over rows to look up this rank's `tokens` tokens in the table; and the moves of results.
  EmbeddingMove embedding_move(const Weight& table, int64_t tokens) const;
  at::Tensor gather_token_ids(const at::Tensor& token_ids) const { return mesh_->gather_token_ids(token_ids); }
  at::Tensor results_to_tokens(const at::Tensor& results) const { return mesh_->results_to_tokens(results, width_); }
  at::Tensor gradients_to_rows(const at::Tensor& gradients) const { return mesh_->gradients_to_rows(gradients); }

  /// This column's rows of the weight in full width: an all-gather over rows.
  at::Tensor gather_weight(const Weight& weight) const;
  /// begin_gradient: the tensor to which products for the gradient of gather_weight(weight) are added. With one row it
  /// is the weight's own gradient, zeroed if it is fresh and `adds`. finish_gradient: reduce-scatters the sum over rows
  /// and adds it to the weight's gradient; call it after all products.
  at::Tensor begin_gradient(const Weight& weight, bool adds) const;
  void finish_gradient(const Weight& weight, const at::Tensor& sum) const;

 private:
  bool rows() const { return mesh_ && mesh_->plan().rows > 1; }

  std::optional<TensorMesh> mesh_;
  int64_t width_ = 0;
};

}  // namespace orthant

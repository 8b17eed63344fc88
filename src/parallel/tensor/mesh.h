// TensorMesh: the redistributions that all layers on a tensor mesh use, for the residual stream and for weights that
// rows shard.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/comm.h"
#include "comm/redistribute.h"
#include "parallel/tensor/plan.h"

namespace orthant {

/// One rank's end of a tensor mesh. A rank holds a shard of the stream [B,T,C]: of its width, of its tokens (Megatron's
/// sequence parallelism; columns must then divide tokens), or all of it. The two redistributions of each pair are each
/// other's gradient. None of them is under autograd.
class TensorMesh {
 public:
  /// The Comm must outlive it.
  TensorMesh(Comm& comm, const TensorPlan& plan) : comm_(comm), plan_(plan) {}

  const TensorPlan& plan() const { return plan_; }
  Comm& comm() const { return comm_; }
  int column() const;

  /// Starts an all-gather over columns: from this rank's shard to the unsharded stream of the given width.
  Redistribution gather(const at::Tensor& part_BTC, int64_t width) const;
  /// Starts the sum over columns of partial sums: a reduce-scatter to this rank's shard, or an all-reduce if columns do
  /// not shard the stream.
  Redistribution sum(const at::Tensor& summand_BTC) const;
  /// The tensors of all columns, stacked: [columns, ...], an all-gather.
  at::Tensor gather_columns(const at::Tensor& own) const;
  /// Starts an all-gather over rows of a matrix that rows shard along `dim`, of this extent; and the reverse, a
  /// reduce-scatter of partial sums over rows to this rank's shard along `dim`.
  Redistribution gather_rows(const at::Tensor& part, int dim, int64_t extent) const;
  Redistribution sum_rows(const at::Tensor& summand, int dim) const;
  /// The three moves of EmbeddingMove::results over rows, as plan.h describes them. token_ids is int64 [N].
  at::Tensor gather_token_ids(const at::Tensor& token_ids) const;
  at::Tensor results_to_tokens(const at::Tensor& results, int64_t hidden) const;
  at::Tensor gradients_to_rows(const at::Tensor& gradients) const;
  /// Number of tokens of all columns together, given the tokens of this rank's shard of the stream.
  int64_t all_tokens(int64_t of_part) const;
  /// Range of the tokens [0, all) that are in this rank's shard of the stream.
  Range tokens(int64_t all) const;
  /// Range of the channels [0, width) that are in this rank's shard of the stream.
  Range channels(int64_t width) const;

 private:
  Comm& comm_;
  const TensorPlan plan_;
};

}  // namespace orthant

// What the layers of a tensor mesh have in common: the residual stream, weights in rows, and the way between a part and
// the whole of each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "comm/comm.h"
#include "comm/redistribute.h"
#include "parallel/tensor/plan.h"

namespace orthant {

/// One rank's end of a tensor mesh. The stream is [B,T,C], of which a rank holds a part of the width (or, as Megatron's
/// sequence parallelism, of the tokens, which must then divide over columns; or all). Each pair is the other's
/// gradient.
class TensorMesh {
 public:
  /// The Comm must outlive it.
  TensorMesh(Comm& comm, const TensorPlan& plan) : comm_(comm), plan_(plan) {}

  const TensorPlan& plan() const { return plan_; }
  Comm& comm() const { return comm_; }
  int column() const;

  /// The whole stream of the width, from this rank's part: an all-gather over columns.
  Redistribution gather(const at::Tensor& part_BTC, int64_t width) const;
  /// This rank's part of the sum over columns: a reduce-scatter, or an all-reduce where the stream is not cut.
  Redistribution sum(const at::Tensor& summand_BTC) const;
  /// The whole matrix that rows have cut along a dim, an all-gather over rows; and the sum over rows, cut along it, a
  /// reduce-scatter.
  Redistribution gather_rows(const at::Tensor& part, int dim, int64_t extent) const;
  Redistribution sum_rows(const at::Tensor& summand, int dim) const;
  /// The tokens that columns have together, where this rank's part of the stream has so many.
  int64_t all_tokens(int64_t of_part) const;
  /// The tokens of [.., T, ..] that this rank's part of the stream stands for.
  Range tokens(int64_t all) const;
  /// The channels.
  Range channels(int64_t width) const;

 private:
  Comm& comm_;
  const TensorPlan plan_;
};

}  // namespace orthant

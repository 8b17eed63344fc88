// Messages within a tensor mesh for a vocabulary that pipeline ranks shard first and columns second: the
// redistributions of parallel/tensor/slice_mesh.h, exact in bytes.
#pragma once

#include "parallel/tensor/traffic_plan.h"

namespace orthant {

/// One rank's rows of the vocabulary, and the order of its output layer.
struct TensorSlice {
  int64_t rows = 0;     // of this column
  bool early = false;   // algorithm 2: S sums the head's input gradient over columns before the softmax is known
  int statistics = 3;   // numbers of each token that columns exchange
  int rounds = 1;       // messages that carry them
  bool smooths = false; // the loss smooths labels
};
struct TensorSliceTraffic {
  std::vector<Messages> embedding;  // E and EB of a microbatch
  std::vector<Messages> head;       // S, Z, and T or TW of a microbatch
  std::vector<Messages> norm;       // forward and backward of the last norm

  auto operator<=>(const TensorSliceTraffic&) const = default;
};

/// Messages of the rank for one microbatch. Axes of one rank send nothing. The mesh must have the axes kColumn and
/// kRow.
TensorSliceTraffic slice_traffic(const TensorPlan& plan, const TensorShape& shape, const TensorSlice& slice,
                                 const Mesh& mesh, int rank);

}  // namespace orthant

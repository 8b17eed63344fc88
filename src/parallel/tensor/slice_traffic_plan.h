// What a rank sends within its tensor mesh for a vocabulary's layers that a pipeline's ranks cut before columns do: the
// moves of parallel/vocabulary/slice_mesh.h, to the byte.
#pragma once

#include "parallel/tensor/traffic_plan.h"

namespace orthant {

/// What one rank does with its rows.
struct TensorSlice {
  int64_t rows = 0;     // of this column
  bool early = false;   // the head's input gradient is summed over columns before the softmax is whole
  int statistics = 3;   // that columns tell each other of a token
  int rounds = 1;       // in so many messages
  bool smooths = false;
};
struct TensorSliceTraffic {
  std::vector<TensorMessages> embedding;  // of a microbatch's E and EB
  std::vector<TensorMessages> head;       // of its S, Z, and T or TW
  std::vector<TensorMessages> norm;       // of the last norm, forward; and as much backward
};

/// Of the rank; only axes of more than one rank send. The mesh has the axes of kColumn and kRow.
TensorSliceTraffic slice_traffic(const TensorPlan& plan, const TensorShape& shape, const TensorSlice& slice,
                                 const Mesh& mesh, int rank);

}  // namespace orthant

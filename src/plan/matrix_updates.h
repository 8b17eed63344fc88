// The updates of Muon's matrices on each rank: their messages and their temporary memory.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/tensor/muon_plan.h"
#include "plan/placement.h"

namespace orthant {

/// The axes over which ranks shard the matrices that Muon updates; empty if there are none.
Axes matrix_axes(const ParameterPlacement& plan);

/// Matrices that a rank updates together: all that it owns after backward, or those of one bucket with
/// optimizer.in_backward. The ranks of a group over matrix_axes() have the same matrices.
struct MatrixUpdate {
  int stage = 0;  // of the first matrix
  std::vector<MatrixRound> rounds;
};
std::vector<MatrixUpdate> matrix_updates(const ParameterPlacement& plan, int rank);

/// Calls of all_to_all, and bytes that the rank sends in them, in one step.
struct MatrixTraffic {
  int64_t calls = 0, bytes = 0;
};
MatrixTraffic matrix_traffic(const ParameterPlacement& plan, int rank);

/// Temporary bytes of the largest update on the rank, by stage.
std::vector<int64_t> update_bytes(const ParameterPlacement& plan, int rank);

}  // namespace orthant

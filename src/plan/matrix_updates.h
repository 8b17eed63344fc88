// The updates of Muon's matrices on each rank: which matrices it updates together, their messages, and their temporary
// memory.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "parallel/tensor/muon_plan.h"
#include "plan/placement.h"

namespace orthant {

/// Matrices that a rank updates together: all matrices that it owns, which are updated after backward, or those of one
/// bucket with optimizer.in_backward. The ranks of a group over matrix_axes have the same matrices.
struct MatrixUpdate {
  int stage = 0;  // of the first matrix
  std::vector<MatrixRound> rounds;
};
std::vector<MatrixUpdate> matrix_updates(const ParameterPlacement& plan, int rank);

/// Costs of a rank's updates in one step.
struct MatrixCosts {
  int64_t calls = 0, bytes = 0;          // of all_to_all over matrix_axes, and the bytes that the rank sends in them
  std::vector<int64_t> temporary_bytes;  // of the largest update, by stage
};
/// The MatrixCosts of every rank. They are computed once per set of ranks with the same shards and matrices.
class MatrixCostsByRank {
 public:
  MatrixCostsByRank(const ParameterPlacement& plan, const ParameterShards& held);
  const MatrixCosts& of(int rank) const { return costs_.at(keys_[static_cast<size_t>(rank)]); }

 private:
  using Key = std::pair<int, int>;   // the lowest rank with the same shards; with ZeRO, the position of the chunks
  std::vector<Key> keys_;            // by rank
  std::map<Key, MatrixCosts> costs_;
};

}  // namespace orthant

// The updates of Muon's matrices on each rank: which matrices it updates together, their messages, and their temporary
// memory.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
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
/// The same for a rank that owns these parts of the parameters: see ParameterPlacement::owned_parts().
std::vector<MatrixUpdate> matrix_updates(const ParameterPlacement& plan, const std::vector<Range>& owned);

/// Costs of a rank's updates in one step.
struct MatrixCosts {
  int64_t calls = 0, bytes = 0;  // of all_to_all over matrix_axes, and the bytes that the rank sends in them; it
                                 // receives as many
  std::vector<int64_t> temporary_bytes;  // of the largest update, by stage

  auto operator<=>(const MatrixCosts&) const = default;
};
/// Returns the costs of the rank, which owns these parts of the parameters.
MatrixCosts matrix_costs(const ParameterPlacement& plan, const std::vector<Range>& owned, int rank);

/// The MatrixCosts of every rank. They are computed once per set of ranks with the same shards and matrices, and equal
/// costs are stored once.
class MatrixCostsByRank {
 public:
  MatrixCostsByRank(const ParameterPlacement& plan, const ParameterShards& held);
  const std::shared_ptr<const MatrixCosts>& of(int rank) const;

 private:
  GroupPositions shards_, chunks_;  // of ranks with different parameter shards, and with ZeRO of the chunks
  std::map<std::pair<int, int>, std::shared_ptr<const MatrixCosts>> costs_;
};

}  // namespace orthant

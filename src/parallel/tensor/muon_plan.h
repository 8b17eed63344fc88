// Updates of Muon on a tensor mesh. An update orthogonalizes full matrices, of which the ranks hold shards. The n ranks
// of a group over rows and columns take the matrices in rounds. In a round, each rank receives the shards of one
// matrix, orthogonalizes it, and returns the shards of the result. So a group computes a matrix once, by the products
// of one device, and a rank sends on average about two shards for each matrix, in 2 (n - 1) messages for each round.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "model/optimizer_plan.h"

namespace orthant {

/// Divides the matrices into rounds of at most `ranks` matrices; position i of the group computes element i of a round.
/// The largest matrices come first, so that the ranks of a round have about equal work. `parameters` are indexed by the
/// matrices.
std::vector<MatrixRound> matrix_rounds(const std::vector<ParameterInfo>& parameters, std::vector<size_t> matrices,
                                       int ranks);

/// The axes that split the matrices, in the mesh's order; empty if every rank has full matrices. Throws LogicError if
/// they differ between matrices.
std::vector<std::string> axes_of_matrices(const Mesh& mesh, std::span<const size_t> matrices,
                                          const std::vector<Layout>& layouts);

/// Numbers of elements that a rank sends and receives in the first exchange of a round, by position in the group. The
/// second exchange returns them.
struct RoundElements {
  int position = 0;                    // the rank's own
  std::vector<int64_t> sent_to;        // elements of its shards of the matrices that these positions compute
  std::vector<int64_t> received_from;  // elements of these positions' shards of its matrix; zeros if it computes none

  int64_t shard_elements() const;  // sums over all positions, its own included
  int64_t matrix_elements() const;
  /// Elements that the rank sends to other ranks in both exchanges.
  int64_t sent() const;
};
/// Elements of a round on the rank. `axes`: axes_of_matrices().
RoundElements round_elements(const Mesh& mesh, std::span<const std::string> axes, const MatrixRound& round,
                             const std::vector<ParameterInfo>& parameters, const std::vector<Layout>& layouts,
                             int rank);

/// Elements of a round's temporary tensors at their peak on the rank.
int64_t temporary_elements(const OptimizerConfig& optimizer, const MatrixRound& round, const RoundElements& elements,
                           const std::vector<ParameterInfo>& parameters);

}  // namespace orthant

// Updates of Muon on a tensor mesh. An update orthogonalizes full matrices, of which the ranks hold shards. The ranks
// take the matrices in rounds. In a round, each rank receives the shards of one matrix, orthogonalizes it, and returns
// the shards of the result. So a matrix is computed once, by the products of one device, and each rank sends about the
// bytes of two shards for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "model/optimizer_plan.h"

namespace orthant {

/// The matrices of one round, as indices of parameters: position i of the group computes the matrix at index i.
using MatrixRound = std::vector<size_t>;

/// Divides the matrices into rounds of at most `ranks`. They are sorted by size, largest first, so that the ranks of a
/// round have about equal work. `parameters` are indexed by the matrices.
std::vector<MatrixRound> matrix_rounds(const std::vector<ParameterInfo>& parameters, std::vector<size_t> matrices,
                                       int ranks);

/// The axes that split the matrices, in the mesh's order; empty if every rank has full matrices. Throws LogicError if
/// they differ between matrices.
std::vector<std::string> axes_of_matrices(const Mesh& mesh, std::span<const size_t> matrices,
                                          const std::vector<Layout>& layouts);

/// Numbers of elements in the first exchange of a round, by position in the group. The second exchange returns them.
struct RoundElements {
  std::vector<int64_t> to;    // of this rank's shards of the matrices that other ranks compute
  std::vector<int64_t> from;  // of the other ranks' shards of this rank's matrix; zeros if it has none

  /// Elements that the rank sends in both exchanges, to other ranks.
  int64_t sent(int position) const;
};
/// Elements of a round on the rank. `axes`: axes_of_matrices().
RoundElements round_elements(const Mesh& mesh, std::span<const std::string> axes, const MatrixRound& round,
                             const std::vector<ParameterInfo>& parameters, const std::vector<Layout>& layouts,
                             int rank);

/// Elements of a round's temporary tensors at their peak on the rank, which has this position in the group.
int64_t temporary_elements(const OptimizerConfig& optimizer, const MatrixRound& round, const RoundElements& elements,
                           const std::vector<ParameterInfo>& parameters, int position);

}  // namespace orthant

#include "parallel/tensor/muon_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/errors.h"

namespace orthant {
namespace {

int64_t sum(const std::vector<int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
}

}  // namespace

std::vector<MatrixRound> matrix_rounds(const std::vector<ParameterInfo>& parameters, std::vector<size_t> matrices,
                                       int ranks) {
  std::ranges::sort(matrices, {}, [&](size_t matrix) { return std::pair(-parameters[matrix].size(), matrix); });
  std::vector<MatrixRound> rounds;
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (i % static_cast<size_t>(ranks) == 0) rounds.emplace_back();
    rounds.back().push_back(matrices[i]);
  }
  return rounds;
}

std::vector<std::string> axes_of_matrices(const Mesh& mesh, std::span<const size_t> matrices,
                                          const std::vector<Layout>& layouts) {
  std::vector<std::string> axes;
  for (const size_t matrix : matrices) {
    std::vector<std::string> own;
    for (const Axis& axis : mesh.axes) {
      if (axis_placement(layouts[matrix], axis.name).kind == AxisPlacementKind::S) own.push_back(axis.name);
    }
    if (matrix == matrices.front()) axes = own;
    ORTHANT_CHECK(own == axes, matrix, to_string(layouts[matrix]));
  }
  return axes;
}

int64_t RoundElements::shard_elements() const { return sum(sent_to); }
int64_t RoundElements::matrix_elements() const { return sum(received_from); }

int64_t RoundElements::sent() const {
  const auto own = static_cast<size_t>(position);
  return shard_elements() - sent_to[own] + matrix_elements() - received_from[own];
}

RoundElements round_elements(const Mesh& mesh, std::span<const std::string> axes, const MatrixRound& round,
                             const std::vector<ParameterInfo>& parameters, const std::vector<Layout>& layouts,
                             int rank) {
  const std::vector<int> group = mesh.group(rank, axes);
  const auto own = static_cast<size_t>(mesh.group_index(rank, axes));
  const auto elements = [&](size_t position, int of_rank) {
    if (position >= round.size()) return int64_t{0};
    const size_t matrix = round[position];
    return volume(local_shape(mesh, layouts[matrix], parameters[matrix].shape, of_rank));
  };
  RoundElements all{.position = static_cast<int>(own)};
  for (size_t position = 0; position < group.size(); ++position) {
    all.sent_to.push_back(elements(position, rank));
    all.received_from.push_back(elements(own, group[position]));
  }
  return all;
}

int64_t temporary_elements(const OptimizerConfig& optimizer, const MatrixRound& round, const RoundElements& elements,
                           const std::vector<ParameterInfo>& parameters) {
  const int64_t shards = elements.shard_elements(), matrix = elements.matrix_elements();
  const int64_t exchanged = std::max(2 * shards, shards + matrix);  // shards, and their copy that is sent; then both
  if (matrix == 0) return exchanged;
  return std::max(exchanged, update_elements(optimizer, parameters[round[static_cast<size_t>(elements.position)]]));
}

}  // namespace orthant

#include "plan/matrix_updates.h"

#include <algorithm>
#include <map>

#include "config/from_config.h"

namespace orthant {
namespace {

bool is_updated_matrix(const ParameterPlacement& plan, size_t parameter) {
  return requires_single_owner(plan.config.optimizer, plan.parameters[parameter]);
}

// Calls `visit` with the update, the round and its elements on the rank.
template <class Visit>
void for_each_round(const ParameterPlacement& plan, int rank, const Visit& visit) {
  const Axes axes = matrix_axes(plan);
  for (const MatrixUpdate& update : matrix_updates(plan, rank)) {
    for (const MatrixRound& round : update.rounds) {
      visit(update, round, round_elements(plan.mesh, axes, round, plan.parameters, plan.layouts, rank));
    }
  }
}

}  // namespace

Axes matrix_axes(const ParameterPlacement& plan) {
  std::vector<size_t> matrices;
  for (size_t i = 0; i < plan.parameters.size(); ++i) {
    if (is_updated_matrix(plan, i)) matrices.push_back(i);
  }
  return axes_of_matrices(plan.mesh, matrices, plan.layouts);
}

std::vector<MatrixUpdate> matrix_updates(const ParameterPlacement& plan, int rank) {
  if (plan.config.optimizer.name != "muon") return {};
  const std::vector<Range> owned = plan.owned_parts(rank);
  std::map<int, std::vector<size_t>> together;  // by bucket; all under 0 if the update follows backward
  const FlatLayout flat = flat_layout(plan.parameters);
  for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    for (const int weight : plan.buckets[bucket].weights) {
      const auto [first, end] = flat.members[static_cast<size_t>(weight)];
      for (size_t i = first; i < end; ++i) {
        if (!is_updated_matrix(plan, i) || owned[i].size() == 0) continue;
        together[plan.config.optimizer.in_backward ? static_cast<int>(bucket) : 0].push_back(i);
      }
    }
  }
  const int ranks = plan.mesh.group_size(matrix_axes(plan));
  std::vector<MatrixUpdate> updates;
  for (auto& [bucket, matrices] : together) {
    const int stage = plan.stage_of(plan.parameters[matrices.front()]);
    updates.push_back({stage, matrix_rounds(plan.parameters, std::move(matrices), ranks)});
  }
  return updates;
}

MatrixTraffic matrix_traffic(const ParameterPlacement& plan, int rank) {
  MatrixTraffic traffic;
  const Axes axes = matrix_axes(plan);
  if (plan.mesh.group_size(axes) == 1) return traffic;
  const int position = plan.mesh.group_index(rank, axes);
  for_each_round(plan, rank, [&](const MatrixUpdate&, const MatrixRound&, const RoundElements& elements) {
    traffic.calls += 2;
    traffic.bytes += elements.sent(position) * master_bytes(plan.config);
  });
  return traffic;
}

std::vector<int64_t> update_bytes(const ParameterPlacement& plan, int rank) {
  std::vector<int64_t> bytes(plan.stages.size());
  const int position = plan.mesh.group_index(rank, matrix_axes(plan));
  const OptimizerConfig& optimizer = plan.config.optimizer;
  for_each_round(plan, rank, [&](const MatrixUpdate& update, const MatrixRound& round, const RoundElements& elements) {
    int64_t& largest = bytes[static_cast<size_t>(update.stage)];
    const int64_t here = temporary_elements(optimizer, round, elements, plan.parameters, position);
    largest = std::max(largest, here * master_bytes(plan.config));
  });
  return bytes;
}

}  // namespace orthant

#include "plan/matrix_updates.h"

#include <algorithm>

#include "base/shared_values.h"
#include "config/from_config.h"
#include "plan/owned_costs.h"

namespace orthant {
namespace {

bool updates_matrices(const ParameterPlacement& plan) { return plan.config.optimizer.name == "muon"; }

// The axes over which the buckets with matrices are divided into chunks; empty without ZeRO.
Axes chunk_axes_of_matrices(const ParameterPlacement& plan) {
  if (!updates_matrices(plan) || !plan.shards_optimizer()) return {};
  const FlatLayout flat = flat_layout(plan.parameters);
  for (const GradientBucket& bucket : plan.buckets) {
    for (const int weight : bucket.weights) {
      if (plan.is_updated_as_matrix(flat.members[static_cast<size_t>(weight)].first)) return bucket.axes;
    }
  }
  return {};
}

}  // namespace

std::vector<MatrixUpdate> matrix_updates(const ParameterPlacement& plan, int rank) {
  return updates_matrices(plan) ? matrix_updates(plan, plan.owned_parts(rank)) : std::vector<MatrixUpdate>();
}

std::vector<MatrixUpdate> matrix_updates(const ParameterPlacement& plan, const std::vector<Range>& owned) {
  std::map<int, std::vector<size_t>> by_update;  // by bucket; all under 0 if the update follows backward
  const FlatLayout flat = flat_layout(plan.parameters);
  for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
    for (const int weight : plan.buckets[bucket].weights) {
      const auto [first, end] = flat.members[static_cast<size_t>(weight)];
      for (size_t i = first; i < end; ++i) {
        if (!plan.is_updated_as_matrix(i) || owned[i].size() == 0) continue;
        by_update[plan.config.optimizer.in_backward ? static_cast<int>(bucket) : 0].push_back(i);
      }
    }
  }
  const int ranks = plan.mesh.group_size(plan.matrix_axes);
  std::vector<MatrixUpdate> updates;
  for (auto& [bucket, matrices] : by_update) {
    const int stage = plan.stage_of(plan.parameters[matrices.front()]);
    updates.push_back({stage, matrix_rounds(plan.parameters, std::move(matrices), ranks)});
  }
  return updates;
}

MatrixCosts matrix_costs(const ParameterPlacement& plan, const std::vector<Range>& owned, int rank) {
  MatrixCosts costs{.temporary_bytes = std::vector<int64_t>(plan.stages.size())};
  if (!updates_matrices(plan)) return costs;
  const int master = master_bytes(plan.config);
  for (const MatrixUpdate& update : matrix_updates(plan, owned)) {
    for (const MatrixRound& round : update.rounds) {
      const RoundElements elements =
          round_elements(plan.mesh, plan.matrix_axes, round, plan.parameters, plan.layouts, rank);
      if (!plan.matrix_axes.empty()) costs.calls += 2, costs.bytes += elements.sent() * master;
      int64_t& largest = costs.temporary_bytes[static_cast<size_t>(update.stage)];
      const OptimizerConfig& optimizer = plan.config.optimizer;
      largest = std::max(largest, temporary_elements(optimizer, round, elements, plan.parameters) * master);
    }
  }
  return costs;
}

MatrixCostsByRank::MatrixCostsByRank(const ParameterPlacement& plan, const ParameterShards& held)
    : shards_(updates_matrices(plan) ? held.positions() : GroupPositions(plan.mesh, Axes())),
      chunks_(plan.mesh, chunk_axes_of_matrices(plan)) {
  const BucketPositions groups(plan);
  SharedValues<MatrixCosts> shared;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const auto [costs, is_new] = costs_.try_emplace({shards_.of(rank), chunks_.of(rank)});
    if (!is_new) continue;
    std::vector<Range> owned;
    if (updates_matrices(plan)) owned = owned_parts(plan, held.of(rank), groups, groups.of(rank));
    costs->second = shared.share(matrix_costs(plan, owned, rank));
  }
}

const std::shared_ptr<const MatrixCosts>& MatrixCostsByRank::of(int rank) const {
  return costs_.at({shards_.of(rank), chunks_.of(rank)});
}

}  // namespace orthant

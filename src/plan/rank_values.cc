#include "plan/rank_values.h"

#include <array>
#include <map>
#include <tuple>

#include "base/shared_values.h"
#include "config/from_config.h"
#include "plan/plan.h"

namespace orthant {
namespace {

Moved statistics_bytes(int ranks, int position) {
  const auto element_bytes = static_cast<int64_t>(sizeof(double));
  return element_bytes * elements_moved(small_sum(ranks), ranks, position, std::array{StepSignals::kElements});
}

DataShard from_its_first_sequence(DataShard shard) {
  const int64_t first = shard.sequences.begin;
  const auto move = [&](Range& range) { range = {range.begin - first, range.end - first}; };
  move(shard.sequences);
  for (Range& microbatch : shard.microbatches) move(microbatch);
  return shard;
}

}  // namespace

Axes statistics_axes(const Sharding& sharding) {
  Axes axes = all_axes(sharding.mesh);
  if (sharding.post_validates()) std::erase(axes, kPipeline);
  return axes;
}

RankValues rank_values(const ParameterPlacement& plan, int rank) {
  const Axes statistics = statistics_axes(plan);
  const BucketPositions groups(plan);
  const std::vector<int> positions = groups.of(rank);
  const int copy = plan.mesh.has(kReplica) ? plan.mesh.coord(rank, kReplica) : 0;
  auto held = std::make_shared<const ParameterShard>(plan, rank);
  return {.pipeline_rank = plan.pipeline_rank(rank),
          .data_shard = from_its_first_sequence(plan.data_shard(rank)),
          .statistics = statistics_bytes(plan.mesh.group_size(statistics), plan.mesh.group_index(rank, statistics)),
          .microbatches =
              std::make_shared<const MicrobatchCostsBySize>(microbatch_costs(plan, rank, microbatch_sizes(plan))),
          .held = held,
          .owned = std::make_shared<const OwnedCosts>(owned_costs(plan, *held, groups, positions, copy)),
          .matrices = std::make_shared<const MatrixCosts>(
              matrix_costs(plan, owned_parts(plan, *held, groups, positions), rank))};
}

RankTable::RankTable(const ParameterPlacement& plan, const ParameterShards& held) {
  const MicrobatchCostsByRank microbatches(plan);
  const MatrixCostsByRank matrices(plan, held);
  const BucketPositions groups(plan);
  const GroupPositions pipeline(plan.mesh, kOverPipeline), data(plan.mesh, batch_axes(plan.mesh)),
      statistics(plan.mesh, statistics_axes(plan)), copies(plan.mesh, plan.copy_axes());
  // The costs of the parts that a rank owns follow from its shards, the classes of its positions among the chunks of
  // buckets, and its copy of sharded states.
  std::map<const ParameterShard*, PositionClasses> position_classes;
  SharedValues<OwnedCosts> owned_values;
  std::map<std::tuple<const ParameterShard*, std::vector<int>, int>, std::shared_ptr<const OwnedCosts>> owned_known;
  using Key = std::tuple<int, int64_t, Moved, const void*, const void*, const void*, const void*>;
  std::map<Key, int> labels;
  std::vector<int> label_of_rank;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    const std::shared_ptr<const ParameterShard>& shard = held.shared(rank);
    const std::vector<int> positions = groups.of(rank);
    const auto classes = position_classes.try_emplace(shard.get(), plan, *shard, groups).first;
    std::shared_ptr<const OwnedCosts>& owned =
        owned_known[{shard.get(), classes->second.of(positions), copies.of(rank)}];
    if (!owned) owned = owned_values.share(owned_costs(plan, *shard, groups, positions, copies.of(rank)));
    const DataShard& data_shard = plan.data_shards[static_cast<size_t>(data.of(rank))];
    const Moved sum_of_statistics = statistics_bytes(statistics.size(), statistics.of(rank));
    const auto& costs = microbatches.of(rank);
    const auto& of_matrices = matrices.of(rank);
    const Key key = {
        pipeline.of(rank), data_shard.sequences.size(), sum_of_statistics, costs.get(), shard.get(), owned.get(),
        of_matrices.get()};
    const auto [label, is_new] = labels.try_emplace(key, static_cast<int>(values_.size()));
    label_of_rank.push_back(label->second);
    if (!is_new) continue;
    values_.push_back({.pipeline_rank = pipeline.of(rank),
                       .data_shard = from_its_first_sequence(data_shard),
                       .statistics = sum_of_statistics,
                       .microbatches = costs,
                       .held = shard,
                       .owned = owned,
                       .matrices = of_matrices});
  }
  classes_ = RankClasses(label_of_rank);
}

}  // namespace orthant

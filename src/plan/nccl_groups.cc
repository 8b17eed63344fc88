#include "plan/nccl_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "config/from_config.h"
#include "parallel/vocabulary/channels_plan.h"
#include "plan/vocabulary.h"

namespace orthant {

int64_t NcclGroups::communicators(int pipeline_rank) const {
  return std::ssize(groups) + std::ranges::count_if(directions, [&](const auto& direction) {
           return direction.first == pipeline_rank || direction.second == pipeline_rank;
         });
}

NcclGroups nccl_groups(const Plan& plan) {
  NcclGroups all;
  all.groups.emplace(plan.mesh.joined_name(all_axes(plan.mesh)), 0);  // checkpoints are collected over all ranks
  for (const CommunicationEntry& entry : plan.communication) all.groups.emplace(entry.axis, 0);
  if (!plan.vocabulary.empty()) {
    for (const int channel : vocabulary_channels(algorithm_of(plan)->rounds())) all.groups.emplace(kPipeline, channel);
    if (plan.tensor.columns > 1) all.groups.emplace(kColumn, kStatisticsChannel);  // a sample gathers its logits there
  }
  const Schedule& schedule = plan.schedule;
  for (size_t rank = 0; rank < schedule.rows.size(); ++rank) {
    for (const Action& action : schedule.rows[rank]) {
      if (!is_message(action) || facts(action.kind).stream != Stream::send) continue;
      const int to = schedule.stage_owner[static_cast<size_t>(matching_message(action).stage)];
      all.directions.emplace(static_cast<int>(rank), to);
    }
  }
  return all;
}

void check_nccl_groups(const Plan& plan) {
  constexpr int64_t kStreams = 32;  // those that libtorch gives to NCCL on a device
  if (!uses_nccl(plan.config) || plan.mesh.size() == 1) return;
  const NcclGroups all = nccl_groups(plan);
  for (int rank = 0; rank < plan.mesh.axis_size(kPipeline); ++rank) {
    const int64_t needed = all.communicators(rank);
    if (needed <= kStreams) continue;
    throw ConfigError(
        fmt::format("pipeline rank {} needs {} communicators of NCCL, but at most {} can have a stream of their own; "
                    "shard over fewer "
                    "axes of the mesh {}, or set run.transport = \"gloo\"",
                    rank, needed, kStreams, to_string(plan.mesh)));
  }
}

}  // namespace orthant

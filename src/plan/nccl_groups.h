// The groups over which tensors of a run on GPUs travel.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "plan/plan.h"

namespace orthant {

/// Axes joined by "+", and a channel (Comm::channel()); 0 is none.
using ChannelGroup = std::pair<std::string, int>;

struct NcclGroups {
  /// The groups of collectives: those of the planned communication, of checkpoints, and of a sharded vocabulary.
  std::set<ChannelGroup> groups;
  /// Pairs of pipeline ranks (from, to) between which the schedule sends tensors.
  std::set<std::pair<int, int>> directions;

  /// Number of communicators of a rank: one for each group, and one for each direction from or to its pipeline rank.
  int64_t communicators(int pipeline_rank) const;
};

/// Returns the groups that all ranks must open before the first step, in the order of the sets.
NcclGroups nccl_groups(const Plan& plan);

/// Throws ConfigError if the run uses NCCL and a rank needs more communicators than can have a stream of their own: two
/// communicators with one stream could wait for each other.
void check_nccl_groups(const Plan& plan);

}  // namespace orthant

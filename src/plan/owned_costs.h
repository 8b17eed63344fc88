// Costs that follow from the parts of the parameters that a rank owns: the messages and buffers of each bucket, and the
// optimizer's state.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "mesh/collective.h"
#include "plan/placement.h"

namespace orthant {

/// Positions of ranks among the ranks that reduce a bucket.
class BucketPositions {
 public:
  explicit BucketPositions(const ParameterPlacement& plan);
  /// The positions of a rank, one for each set of axes that buckets are reduced over.
  std::vector<int> of(int rank) const;
  /// Number of sets of axes, and of ranks in the groups over one of them.
  size_t num_groups() const { return groups_.size(); }
  int group_size(size_t group) const { return groups_[group].size(); }
  /// Number of ranks that reduce the bucket, and the index of its axes in of().
  int num_ranks(size_t bucket) const { return groups_[index(bucket)].size(); }
  size_t index(size_t bucket) const { return index_[bucket]; }

 private:
  std::vector<GroupPositions> groups_;  // by set of axes
  std::vector<size_t> index_;           // by bucket
};

/// The parts of the parameters that a rank with these shards and positions owns: ParameterPlacement::owned_parts().
std::vector<Range> owned_parts(const ParameterPlacement& plan, const ParameterShard& held,
                               const BucketPositions& groups, const std::vector<int>& positions);

/// Costs of a bucket on a rank. Bytes are those of one reduction or one gather.
struct BucketCosts {
  int64_t reduction_buffer = 0;  // bytes of other ranks' partial sums
  int64_t copies_buffer = 0;     // the same while the rank's chunk is summed over the copies of sharded states
  Moved reduction_bytes;
  Moved gather_bytes;  // to gather the updated weights
  Moved copies_bytes;  // to sum the rank's chunk over copies

  auto operator<=>(const BucketCosts&) const = default;
};

/// Costs of all parts that a rank owns.
struct OwnedCosts {
  std::vector<BucketCosts> buckets;
  int64_t elements = 0;  // that the rank owns: its chunks with ZeRO, otherwise all that it holds
  int64_t state = 0;     // bytes of the optimizer's state
  /// Bytes of offloaded state that the device holds during an update: of the two largest parameters, because one
  /// parameter's state is copied while the other is updated.
  int64_t state_on_device = 0;
  std::vector<int64_t> tied = {};  // owned elements of each of tied_pairs(), as original or as copy

  auto operator<=>(const OwnedCosts&) const = default;
};

/// Classes of positions whose ranks have equal costs of the parts that they own, if their shards and copies are equal:
/// the positions have chunks of equal sizes in every bucket, and so do the positions after them. If costs depend on
/// which parameters are in a chunk, each position is a class of its own.
class PositionClasses {
 public:
  PositionClasses(const ParameterPlacement& plan, const ParameterShard& held, const BucketPositions& groups);
  /// The classes of a rank's positions, one for each set of axes.
  std::vector<int> of(const std::vector<int>& positions) const;

 private:
  std::vector<std::vector<int>> classes_;  // by set of axes, then by position
};

/// Returns the costs of a rank with these shards and positions. `copy`: its coordinate along the copies of sharded
/// states.
OwnedCosts owned_costs(const ParameterPlacement& plan, const ParameterShard& held, const BucketPositions& groups,
                       const std::vector<int>& positions, int copy);

}  // namespace orthant

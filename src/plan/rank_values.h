// RankValues: all values of a rank that its costs depend on. Ranks with equal values have equal costs, because the
// functions that count memory and messages read these values and no coordinates. So they are called once per class.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mesh/rank_classes.h"
#include "plan/matrix_updates.h"
#include "plan/microbatch_costs.h"
#include "plan/owned_costs.h"

namespace orthant {

struct RankValues {
  int pipeline_rank = 0;
  DataShard data_shard;          // counted from the rank's first sequence
  Moved statistics;              // bytes of the sum of the step's statistics
  std::shared_ptr<const MicrobatchCostsBySize> microbatches;
  std::shared_ptr<const ParameterShard> held;
  std::shared_ptr<const OwnedCosts> owned;
  std::shared_ptr<const MatrixCosts> matrices;
};

/// Returns the values of one rank, from its coordinates.
RankValues rank_values(const ParameterPlacement& plan, int rank);

/// The values of all ranks. Values that several ranks share are computed once, and found by position for each rank. The
/// cost per rank is a look-up, except that with ZeRO each position may own parts of its own: see PositionClasses.
class RankTable {
 public:
  RankTable(const ParameterPlacement& plan, const ParameterShards& held);
  /// Classes of ranks with equal values, and the values of each class.
  const RankClasses& classes() const { return classes_; }
  const std::vector<RankValues>& values() const { return values_; }

 private:
  RankClasses classes_;
  std::vector<RankValues> values_;
};

/// The axes over which the step's statistics are summed. With post-validation they go along the pipeline as a chain.
Axes statistics_axes(const Sharding& sharding);

}  // namespace orthant

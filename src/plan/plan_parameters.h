// Decides which shards of the parameters each rank holds: a part of making a Plan.
#pragma once

#include <map>
#include <vector>

#include "plan/plan.h"

namespace orthant {

/// Fills layouts, groups and buckets from the parameters, the sequence and tensor sharding, and gradient_axes. A tied
/// head on several stages becomes a parameter of its own, a copy of the embedding table.
void lay_out_parameters(Plan& plan);

/// Properties that are equal on all ranks with the same parameter shards.
struct ParameterShard {
  int64_t elements = 0;  // of a flat buffer
  std::vector<GradientBucket> buckets;
};
/// The ParameterShard of every rank. It is computed once per set of ranks with the same shards, not once per rank.
class ParameterShards {
 public:
  explicit ParameterShards(const Plan& plan);
  const ParameterShard& of(int rank) const { return parts_.at(replica_leader(rank)); }
  /// Returns the same as Plan::replica_leader().
  int replica_leader(int rank) const { return first_like_[static_cast<size_t>(rank)]; }

 private:
  std::vector<int> first_like_;
  std::map<int, ParameterShard> parts_;  // by the lowest rank that holds these shards
};

}  // namespace orthant

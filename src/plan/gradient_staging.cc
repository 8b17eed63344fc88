// Finds the layer whose backward completes each bucket, and counts the partial sums that its reduction receives.
#include "plan/gradient_staging.h"

#include <algorithm>

#include "mesh/staging.h"

namespace orthant {

GradientStaging::GradientStaging(const ParameterPlacement& plan) : plan_(plan) {
  for (const auto& [first, end] : flat_layout(plan.parameters).members) layers_.push_back(plan.parameters[first].layer);
}

std::vector<int64_t> GradientStaging::of(std::span<const GradientBucket> buckets, int rank) const {
  std::vector<int64_t> bytes(static_cast<size_t>(plan_.architecture.num_hidden_layers) + 2);
  for (const GradientBucket& bucket : buckets) {
    const int ranks = plan_.mesh.group_size(bucket.axes);
    if (ranks == 1 || bucket.elements.size() == 0) continue;
    int last_written = layers_[static_cast<size_t>(bucket.weights.front())];
    for (const int weight : bucket.weights) last_written = std::min(last_written, layers_[static_cast<size_t>(weight)]);
    const int position = plan_.mesh.group_index(rank, bucket.axes);
    const Range summed =
        plan_.shards_optimizer() ? bucket.chunk(position) : shard(bucket.elements.size(), ranks, position);
    bytes[static_cast<size_t>(last_written + 1)] +=
        reduction_buffer_bytes(summed.size() * master_bytes(plan_.config), ranks);
  }
  return bytes;
}

}  // namespace orthant

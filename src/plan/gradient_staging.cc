#include "plan/gradient_staging.h"

#include <algorithm>

#include "mesh/staging.h"

namespace orthant {

std::vector<int64_t> gradient_staging(const Plan& plan, std::span<const GradientBucket> buckets, int rank) {
  std::vector<int> layers;  // by weight
  for (const auto& [first, end] : flat_layout(plan.parameters).members) layers.push_back(plan.parameters[first].layer);
  std::vector<int64_t> bytes(static_cast<size_t>(plan.architecture.num_hidden_layers) + 2);
  for (const GradientBucket& bucket : buckets) {
    const int ranks = plan.mesh.group_size(bucket.axes);
    if (ranks == 1 || bucket.elements.size() == 0) continue;
    int last_written = layers[static_cast<size_t>(bucket.weights.front())];
    for (const int weight : bucket.weights) last_written = std::min(last_written, layers[static_cast<size_t>(weight)]);
    const int64_t own = shard(bucket.elements.size(), ranks, plan.mesh.group_index(rank, bucket.axes)).size();
    bytes[static_cast<size_t>(last_written + 1)] += staging_bytes(own * master_bytes(plan.config), ranks);
  }
  return bytes;
}

}  // namespace orthant

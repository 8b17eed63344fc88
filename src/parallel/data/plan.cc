#include "parallel/data/plan.h"

#include "base/errors.h"

#include <algorithm>

namespace orthant {

int num_microbatches(int64_t global_batch_size, int64_t local_batch_size, int ranks) {
  ORTHANT_CHECK(global_batch_size > 0 && local_batch_size > 0 && ranks > 0, global_batch_size, local_batch_size, ranks);
  const int64_t largest = shard(global_batch_size, ranks, 0).size();
  return static_cast<int>((largest + local_batch_size - 1) / local_batch_size);
}

DataShare data_share(int64_t global_batch_size, int64_t local_batch_size, int ranks, int coord) {
  const int count = num_microbatches(global_batch_size, local_batch_size, ranks);
  DataShare share{.sequences = shard(global_batch_size, ranks, coord), .microbatches = {}};
  for (int i = 0; i < count; ++i) {
    const Range part = shard(share.sequences.size(), count, i);
    share.microbatches.push_back({share.sequences.begin + part.begin, share.sequences.begin + part.end});
  }
  return share;
}

std::vector<GradientBucket> gradient_buckets(std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                             int64_t flat_elements, int64_t bucket_elements) {
  std::vector<GradientBucket> buckets;
  int64_t end = flat_elements;
  auto last = static_cast<int64_t>(weight_extents.size());
  for (int64_t w = last - 1; w >= 0; --w) {
    const int64_t begin = w == 0 ? 0 : weight_extents[static_cast<size_t>(w)].first;
    if (end - begin < bucket_elements && w > 0) continue;
    buckets.push_back({{begin, end}, {w, last}});
    end = begin;
    last = w;
  }
  std::reverse(buckets.begin(), buckets.end());
  return buckets;
}

int64_t reduction_bytes(const Mesh& mesh, const std::vector<std::string>& axes, const GradientBucket& bucket,
                        int element_bytes, int rank) {
  const Mesh joined({{"joined", mesh.group_size(axes)}});
  const Layout partial{.split = {{}}, .partial = {"joined"}, .replicated = {}};
  const int64_t shape[] = {bucket.elements.size()};
  int64_t bytes = 0;
  for (const Collective& step : redistribute(joined, partial, whole(1), shape, element_bytes)) {
    bytes += bytes_sent(joined, step, partial, shape, element_bytes, mesh.group_index(rank, axes));
  }
  return bytes;
}

}  // namespace orthant

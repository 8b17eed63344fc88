// Splits batches into microbatches and gradients into buckets.
#include "parallel/data/plan.h"

#include "base/errors.h"

#include <algorithm>
#include <utility>

namespace orthant {
namespace {

int region_at(std::span<const GradientRegion> regions, int64_t offset) {
  for (size_t r = 0; r < regions.size(); ++r) {
    const Range& elements = regions[r].elements;
    if (elements.begin <= offset && offset < elements.end) return static_cast<int>(r);
  }
  throw LogicError(fmt::format("no region of the gradients holds element {}", offset));
}

}  // namespace

int num_microbatches(int64_t global_batch_size, int64_t local_batch_size, int ranks) {
  ORTHANT_CHECK(global_batch_size > 0 && local_batch_size > 0 && ranks > 0, global_batch_size, local_batch_size, ranks);
  const int64_t largest = shard(global_batch_size, ranks, 0).size();
  return static_cast<int>((largest + local_batch_size - 1) / local_batch_size);
}

DataShard make_data_shard(int64_t global_batch_size, int64_t local_batch_size, int ranks, int coord) {
  const int count = num_microbatches(global_batch_size, local_batch_size, ranks);
  DataShard data_shard{.sequences = shard(global_batch_size, ranks, coord), .microbatches = {}};
  for (int i = 0; i < count; ++i) {
    const Range part = shard(data_shard.sequences.size(), count, i);
    data_shard.microbatches.push_back({data_shard.sequences.begin + part.begin, data_shard.sequences.begin + part.end});
  }
  return data_shard;
}

std::map<int64_t, int64_t> microbatch_sizes(const DataShard& data_shard) {
  // The split is balanced: the first `larger` microbatches have least + 1 sequences, all others have `least`.
  const auto count = static_cast<int64_t>(data_shard.microbatches.size());
  const int64_t least = data_shard.sequences.size() / count, larger = data_shard.sequences.size() % count;
  std::map<int64_t, int64_t> sizes;
  if (larger > 0) sizes[least + 1] = larger;
  if (least > 0) sizes[least] = count - larger;
  return sizes;
}

std::vector<int64_t> GradientBucket::chunk_sizes() const {
  std::vector<int64_t> sizes;
  for (size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
  return sizes;
}

std::vector<int64_t> chunk_cuts(Range elements, std::span<const ParameterBlocks> parameters,
                                std::span<const int64_t> loads) {
  ORTHANT_CHECK(!loads.empty() && !parameters.empty(), loads.size(), parameters.size());
  // The positions with loads below one level are filled up to it. The level is a fraction: level / filled. It falls
  // when a position above it is left out, until none is above it.
  int64_t level = 0, filled = 0;
  const auto is_filled = [&](int64_t load) { return filled == 0 || load * filled < level; };
  for (bool again = true; again;) {
    int64_t sum = elements.size(), count = 0;
    for (const int64_t load : loads) {
      if (is_filled(load)) sum += load, ++count;
    }
    again = count != filled && count > 0;
    if (count > 0) level = sum, filled = count;
  }
  std::vector<int64_t> cuts{elements.begin};
  cuts.reserve(loads.size() + 1);
  auto at = parameters.begin();  // the last parameter that begins at or before the border
  const int64_t whole = level / filled, numerator = level % filled;
  int64_t wanted = elements.begin, sum_of_numerators = 0;  // the border before rounding, and its fraction
  for (size_t i = 0; i + 1 < loads.size(); ++i) {
    if (loads[i] <= whole) {
      wanted += whole - loads[i];
      sum_of_numerators += numerator;
      if (sum_of_numerators >= filled) sum_of_numerators -= filled, ++wanted;
    }
    while (at + 1 != parameters.end() && (at + 1)->elements.begin <= wanted) ++at;
    const auto& [parameter, block] = *at;
    if (wanted < parameter.begin) {  // before the first parameter
      cuts.push_back(elements.begin);
      continue;
    }
    const int64_t below = std::min(parameter.begin + (wanted - parameter.begin) / block * block, parameter.end);
    const int64_t above = std::min(below + block, parameter.end);
    cuts.push_back(wanted - below < above - wanted ? below : above);
  }
  cuts.push_back(elements.end);
  return cuts;
}

std::vector<GradientBucket> gradient_buckets(std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                             std::span<const GradientRegion> regions, int64_t bucket_elements,
                                             const std::set<int>& alone) {
  std::vector<int> region_of, left(regions.size());
  for (const auto& [offset, size] : weight_extents) {
    region_of.push_back(region_at(regions, offset));
    ++left[static_cast<size_t>(region_of.back())];
  }
  std::vector<GradientBucket> buckets, open(regions.size());
  for (size_t r = 0; r < regions.size(); ++r) open[r] = {.elements = {}, .weights = {}, .axes = regions[r].axes};
  std::vector<int64_t> end;
  for (const GradientRegion& region : regions) end.push_back(region.elements.end);
  const auto close = [&](size_t r) {
    end[r] = weight_extents[static_cast<size_t>(open[r].weights.front())].first;
    buckets.push_back(std::exchange(open[r], {.elements = {}, .weights = {}, .axes = regions[r].axes}));
  };
  for (size_t w = weight_extents.size(); w-- > 0;) {
    const auto r = static_cast<size_t>(region_of[w]);
    const bool is_alone = alone.contains(static_cast<int>(w));
    if (is_alone && !open[r].weights.empty()) close(r);
    open[r].weights.insert(open[r].weights.begin(), static_cast<int>(w));
    --left[r];
    if (is_alone || left[r] == 0 || end[r] - weight_extents[w].first >= bucket_elements) close(r);
  }
  std::reverse(buckets.begin(), buckets.end());
  return placed(std::move(buckets), weight_extents, regions);
}

std::vector<GradientBucket> placed(std::vector<GradientBucket> buckets,
                                   std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                   std::span<const GradientRegion> regions) {
  std::vector<GradientBucket*> previous(regions.size());
  for (GradientBucket& bucket : buckets) {
    const int64_t first = weight_extents[static_cast<size_t>(bucket.weights.front())].first;
    const auto r = static_cast<size_t>(region_at(regions, first));
    bucket.elements = {previous[r] ? first : regions[r].elements.begin, regions[r].elements.end};
    if (previous[r]) previous[r]->elements.end = first;
    previous[r] = &bucket;
  }
  return buckets;
}

Moved reduce_scatter_bytes(const Mesh& mesh, const GradientBucket& bucket, int element_bytes, int rank) {
  const int64_t own = bucket.chunk(mesh.group_index(rank, bucket.axes)).size();
  return element_bytes * Moved{bucket.elements.size() - own, (mesh.group_size(bucket.axes) - 1) * own};
}

Moved all_gather_bytes(const Mesh& mesh, const GradientBucket& bucket, int element_bytes, int rank) {
  const int own = mesh.group_index(rank, bucket.axes), next = (own + 1) % mesh.group_size(bucket.axes);
  const int64_t elements = bucket.elements.size();
  return element_bytes * Moved{elements - bucket.chunk(next).size(), elements - bucket.chunk(own).size()};
}

Moved reduction_bytes(const Mesh& mesh, const GradientBucket& bucket, int element_bytes, int rank) {
  // Always one all_reduce, even if redistribute() finds a cheaper path, because GradientReducer runs one all_reduce.
  const Mesh joined({{"joined", mesh.group_size(bucket.axes)}});
  const Layout partial{.split = {{}}, .partial = {"joined"}, .replicated = {}};
  const int64_t shape[] = {bucket.elements.size()};
  const Collective step{.kind = CollectiveKind::all_reduce, .axis = "joined", .after = unsharded_layout(1)};
  return bytes_moved(joined, step, partial, shape, element_bytes, mesh.group_index(rank, bucket.axes));
}

}  // namespace orthant

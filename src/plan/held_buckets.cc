#include "plan/held_buckets.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/exact_sum.h"

namespace orthant {
namespace {

// A parameter of a bucket, and its elements in a flat buffer.
struct PlacedParameter {
  size_t index;
  Range elements;
  int64_t begin() const { return elements.begin; }
};
std::vector<PlacedParameter> parameters_in(const GradientBucket& bucket, const FlatLayout& flat) {
  std::vector<PlacedParameter> placed;
  for (const int weight : bucket.weights) {
    const auto [first, end] = flat.members[static_cast<size_t>(weight)];
    const auto& [begin, size] = flat.weights[static_cast<size_t>(weight)];
    for (size_t i = first; i < end; ++i) {
      placed.push_back({i, {flat.parameter_offsets[i], i + 1 < end ? flat.parameter_offsets[i + 1] : begin + size}});
    }
  }
  return placed;
}

// Divides the buckets into chunks, so that the ranks that reduce over the same axes have about as many elements. A
// parameter that two stages hold must have the same chunks on both, whatever the loads are there.
void set_cuts(const ParameterPlacement& plan, const FlatLayout& flat, std::vector<GradientBucket>& buckets) {
  std::map<std::vector<std::string>, std::vector<int64_t>> loads;  // by axes, then by position
  std::set<size_t> on_two_stages;
  for (const auto& [original, copy] : plan.tied_pairs()) on_two_stages.insert({original, copy});
  for (GradientBucket& bucket : buckets) {
    std::vector<ParameterBlocks> parameters;
    bool tied = false;
    for (const auto& [i, elements] : parameters_in(bucket, flat)) {
      const bool is_matrix = plan.is_updated_as_matrix(i);
      parameters.push_back({elements, std::max<int64_t>(1, is_matrix ? elements.size() : kNormBlockElements)});
      tied = tied || on_two_stages.contains(i);
    }
    std::vector<int64_t>& load = loads[bucket.axes];
    load.resize(static_cast<size_t>(plan.mesh.group_size(bucket.axes)));
    // The gap behind the last parameter is not divided, because it depends on what follows the bucket.
    const Range divided{parameters.front().elements.begin, parameters.back().elements.end};
    bucket.cuts = chunk_cuts(divided, parameters, tied ? std::vector<int64_t>(load.size()) : load);
    bucket.cuts.front() = bucket.elements.begin, bucket.cuts.back() = bucket.elements.end;
    for (size_t i = 0; i < load.size(); ++i) load[i] += bucket.chunk(static_cast<int>(i)).size();
  }
}

// Translates the cuts of the leader's bucket into the rank's flat buffer. An offset beyond the end of a smaller shard
// becomes its end.
std::vector<int64_t> translate_cuts(const GradientBucket& leader_bucket, const FlatLayout& leader_flat,
                                    const GradientBucket& bucket, const FlatLayout& flat) {
  const auto of_leader = parameters_in(leader_bucket, leader_flat), own = parameters_in(bucket, flat);
  std::vector<int64_t> cuts;
  for (const int64_t cut : leader_bucket.cuts) {
    const auto after = std::ranges::upper_bound(of_leader, cut, {}, &PlacedParameter::begin);
    const auto i = static_cast<size_t>(std::max<std::ptrdiff_t>(after - of_leader.begin() - 1, 0));
    const Range& elements = own[i].elements;
    cuts.push_back(elements.begin + std::clamp<int64_t>(cut - of_leader[i].begin(), 0, elements.size()));
  }
  cuts.front() = bucket.elements.begin, cuts.back() = bucket.elements.end;
  return cuts;
}

// The buckets of the rank's own stages, with their indices, without chunks.
struct OwnBuckets {
  std::vector<size_t> indices;
  std::vector<GradientBucket> buckets;
};
OwnBuckets own_buckets(const ParameterPlacement& plan, int rank, const FlatLayout& flat) {
  const GradientOffsets positions = gradient_offsets(plan, flat);
  OwnBuckets own;
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    const int stage = plan.bucket_stages[i];
    if (stage != kEveryStage && plan.stages[static_cast<size_t>(stage)].owner != plan.pipeline_rank(rank)) continue;
    own.indices.push_back(i);
    own.buckets.push_back(plan.buckets[i]);
  }
  own.buckets = placed(std::move(own.buckets), positions.weights, positions.regions);
  return own;
}

}  // namespace

GradientOffsets gradient_offsets(const ParameterPlacement& plan, const FlatLayout& flat) {
  GradientOffsets positions{.weights = flat.weights, .regions = {}};
  for (size_t g = 0; g < flat.groups.size(); ++g) {
    const auto [begin, end] = flat.groups[g];
    positions.regions.push_back({{begin, end}, plan.groups[g].reduced});
  }
  return positions;
}

std::vector<GradientBucket> held_buckets(const ParameterPlacement& plan, int rank, const FlatLayout& flat,
                                         bool has_chunks) {
  OwnBuckets own = own_buckets(plan, rank, flat);
  // The first rank of a tensor mesh has the largest shards.
  const int leader = plan.mesh.group(rank, {kColumn, kRow}).front();
  if (has_chunks && leader == rank) {
    set_cuts(plan, flat, own.buckets);
  } else if (has_chunks) {
    const FlatLayout leader_flat = flat_layout(plan.parameters_of(leader));
    OwnBuckets of_leader = own_buckets(plan, leader, leader_flat);
    set_cuts(plan, leader_flat, of_leader.buckets);
    for (size_t i = 0; i < own.buckets.size(); ++i) {
      own.buckets[i].cuts = translate_cuts(of_leader.buckets[i], leader_flat, own.buckets[i], flat);
    }
  }
  std::vector<GradientBucket> all = plan.buckets;
  for (GradientBucket& bucket : all) bucket.elements = {0, 0};
  for (size_t i = 0; i < own.indices.size(); ++i) all[own.indices[i]] = std::move(own.buckets[i]);
  return all;
}

}  // namespace orthant

// Data parallelism, the plan: every rank holds the whole model and a share of each batch; gradients are summed.
//
// Weights are I along the data axis and used as R, so by the dual law their gradients come out P and one all-reduce a
// bucket makes them I again. Cost a step and rank: 2 (n-1)/n x bytes of all gradients, hidden behind backward.
// Buckets and their overlap: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), section 3.2.
#pragma once

#include "mesh/layout.h"
#include "mesh/mesh.h"
#include "mesh/redistribute.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

/// What one data rank reads of a global batch: positions in the batch, cut into microbatches. Shares and microbatches
/// are balanced and may be uneven; a microbatch may be empty where there are more ranks than sequences.
struct DataShare {
  Range sequences;
  std::vector<Range> microbatches;
};

/// The same on every rank, so that every rank runs the same schedule: ceil(largest share / local_batch_size).
int num_microbatches(int64_t global_batch_size, int64_t local_batch_size, int ranks);
DataShare data_share(int64_t global_batch_size, int64_t local_batch_size, int ranks, int coord);
/// How many microbatches there are of each number of sequences; empty ones are left out.
std::map<int64_t, int64_t> microbatch_sizes(const DataShare& share);

/// Where the weights stand in the flat gradient buffer that are partial sums over the same axes. A weight that is split
/// over an axis is complete along it; those of one region come side by side.
struct GradientRegion {
  Range elements;
  std::vector<std::string> axes;
};

/// A contiguous part of the flat gradient buffer that is reduced over the axes by one message, and the weights in it.
struct GradientBucket {
  Range elements;
  std::vector<int> weights;
  std::vector<std::string> axes;
};

/// Cuts weights (given by [offset, size) in the flat buffer, in the model's order) into buckets of at least
/// bucket_elements, from the last weight on, since backward completes that first; a bucket lies in one region, whose
/// remainder is its first bucket. In the order in which they are complete, the last first. A region's first bucket
/// starts where the region does.
std::vector<GradientBucket> gradient_buckets(std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                             std::span<const GradientRegion> regions, int64_t bucket_elements);

/// The same buckets on a rank where weights have other sizes, of split ones: which weights go together is for all ranks
/// to agree on.
std::vector<GradientBucket> placed(std::vector<GradientBucket> buckets,
                                   std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                   std::span<const GradientRegion> regions);

/// What a rank sends for a bucket: P -> I over the ranks that its axes join, by one all_reduce among all of them.
int64_t reduction_bytes(const Mesh& mesh, const GradientBucket& bucket, int element_bytes, int rank);

}  // namespace orthant

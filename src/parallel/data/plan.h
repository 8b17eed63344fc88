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

/// A contiguous part of the flat gradient buffer that is reduced by one message, and the weights that lie in it.
struct GradientBucket {
  Range elements;
  Range weights;
};

/// Cuts weights (given by [offset, size) in the flat buffer, in the model's order) into buckets of at least bucket_elements,
/// from the last weight on, since backward completes that first; the remainder is the first bucket. Bucket 0 starts at
/// element 0, so that whatever is bundled in front of the gradients travels with it.
std::vector<GradientBucket> gradient_buckets(std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                             int64_t flat_elements, int64_t bucket_elements);

/// What a rank sends for a bucket: P -> I over the ranks that the axes join, by one all_reduce among all of them.
int64_t reduction_bytes(const Mesh& mesh, const std::vector<std::string>& axes, const GradientBucket& bucket,
                        int element_bytes, int rank);

}  // namespace orthant

// Planning of data parallelism. Every rank of the data axis processes a shard of each batch. Gradients are summed over
// the ranks. With zero_stage 0 every rank holds the full model; stages 2 and 3 are in zero_plan.h.
//
// Weights are I along the data axis and used as R (mesh/layout.h). So their gradients are P, and one all-reduce per
// bucket makes them I again. Over n ranks each rank sends 2 (n-1)/n times the bytes of all gradients in a step, and
// this overlaps with backward. Buckets and overlap: Li et al. 2020, "PyTorch Distributed", arXiv 2006.15704,
// section 3.2.
//
// With zero_stage 1 each rank keeps the optimizer's state, and the master weights if they have another dtype than the
// working values, for its chunk of each bucket only. A reduce-scatter sums the gradients. After the step an all-gather
// of the weights completes each bucket: Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, section 5.1.
#pragma once

#include "mesh/layout.h"
#include "mesh/mesh.h"
#include "mesh/redistribute.h"

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace orthant {

/// The shard of a global batch that one data rank reads, as positions of sequences in the batch, split into
/// microbatches. Both splits are balanced and may be uneven. A microbatch may be empty if ranks outnumber sequences.
struct DataShard {
  Range sequences;
  std::vector<Range> microbatches;
};

/// Number of microbatches per step: ceil(largest shard / local_batch_size). It is the same on every rank, so that every
/// rank runs the same schedule.
int num_microbatches(int64_t global_batch_size, int64_t local_batch_size, int ranks);
/// The shard of the data rank at coordinate `coord`. Batch sizes are in sequences. Example: a global batch of 10 on 4
/// ranks with local batch size 2 gives rank 0 sequences [0, 3), in microbatches [0, 2) and [2, 3).
DataShard make_data_shard(int64_t global_batch_size, int64_t local_batch_size, int ranks, int coord);
/// Number of microbatches by their number of sequences, without empty ones.
std::map<int64_t, int64_t> microbatch_sizes(const DataShard& data_shard);

/// A contiguous part of the flat gradient buffer whose gradients are partial sums over the same axes. A weight that is
/// split over an axis has complete gradients along that axis. All weights with the same axes are in one region.
struct GradientRegion {
  Range elements;
  std::vector<std::string> axes;
};

/// A contiguous part of the flat gradient buffer that one collective sums over the axes, and the weights in it.
struct GradientBucket {
  Range elements;
  std::vector<int> weights;
  std::vector<std::string> axes;
  /// The borders of the chunks into which the ranks of the axes divide the bucket: position i has the elements from
  /// cuts[i] to cuts[i + 1]. They depend on the rank's shards: ParameterPlacement::buckets_of() sets them. A bucket
  /// without elements needs none.
  std::vector<int64_t> cuts = {};

  Range chunk(int position) const {
    if (elements.size() == 0) return elements;
    const auto at = static_cast<size_t>(position);
    return {cuts.at(at), cuts.at(at + 1)};
  }
  /// Number of elements of each position's chunk.
  std::vector<int64_t> chunk_sizes() const;
};

/// The range of a parameter in the flat buffer, and the distance from its begin between possible borders of chunks:
/// kNormBlockElements, or the parameter's size if ZeRO must not divide it.
struct ParameterBlocks {
  Range elements;
  int64_t block_elements;
};

/// Divides the elements among positions. loads[i]: elements that position i has of other buckets; all loads become as
/// equal as possible. Each border is a possible one, the nearest to that division. So no block of the gradient norm
/// lies in two chunks, and chunks have no padding. `parameters` must be sorted by begin. Both spans must have entries.
/// Returns the bucket's cuts.
/// Example: a parameter of 1,000 elements and three loads of 0 give chunks of 256, 512 and 232 elements.
std::vector<int64_t> chunk_cuts(Range elements, std::span<const ParameterBlocks> parameters,
                                std::span<const int64_t> loads);

/// Groups weights into buckets of at least bucket_elements. Weights are given as (offset, size) in the flat buffer, in
/// the model's order. Grouping begins at the last weight, because backward completes it first. A bucket lies in one
/// region. The first bucket of a region starts where the region starts, and may be smaller than bucket_elements. Each
/// weight in `alone` has a bucket of its own. The bucket that backward completes last comes first.
/// Example: five weights of 4 elements and bucket_elements = 8 give [0, 4), [4, 12), [12, 20).
std::vector<GradientBucket> gradient_buckets(std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                             std::span<const GradientRegion> regions, int64_t bucket_elements,
                                             const std::set<int>& alone = {});

/// Recomputes the elements of the buckets for a rank on which sharded weights have other sizes. The grouping of weights
/// stays, because all ranks must agree on it.
std::vector<GradientBucket> placed(std::vector<GradientBucket> buckets,
                                   std::span<const std::pair<int64_t, int64_t>> weight_extents,
                                   std::span<const GradientRegion> regions);

/// Bytes that the rank sends and receives for the bucket: one all_reduce (P -> I) over the joint group of the bucket's
/// axes.
Moved reduction_bytes(const Mesh& mesh, const GradientBucket& bucket, int element_bytes, int rank);
/// The same for a reduce_scatter of the bucket, whose chunks need not be equal, and for an all_gather. The bucket must
/// have its cuts.
Moved reduce_scatter_bytes(const Mesh& mesh, const GradientBucket& bucket, int element_bytes, int rank);
Moved all_gather_bytes(const Mesh& mesh, const GradientBucket& bucket, int element_bytes, int rank);

}  // namespace orthant

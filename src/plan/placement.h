// The third step of planning: which shards of the parameters each rank holds, and when their gradients are reduced.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/layout.h"
#include "parallel/data/zero_plan.h"
#include "plan/pipeline.h"

namespace orthant {

/// Parameters of one stage whose gradients are reduced over the same axes and that are sharded over the same axes
/// (`split`). Vocabulary rows that are sharded over the pipeline belong to no single stage, since every rank has some.
struct ParameterGroup {
  std::vector<std::string> reduced, split;
  int stage = 0;  // or kEveryStage
  bool operator==(const ParameterGroup&) const = default;
};

inline constexpr int kEveryStage = -1;

struct ParameterShard;

/// The parameters of a pipeline's stages on the mesh, and the schedule with the reductions of their gradients.
struct ParameterPlacement : Pipeline {
  /// All parameters. A tied head on several stages is a parameter of its own, a copy of the embedding table.
  std::vector<ParameterInfo> parameters;
  std::vector<Layout> layouts;             // by parameter
  std::vector<ParameterGroup> groups;      // by ParameterInfo::group; the first is not sharded
  std::vector<std::string> gradient_axes;  // axes over which gradients are partial sums before their reduction
  std::vector<std::string> matrix_axes;    // axes that shard the matrices that Muon updates; empty if there are none
  std::vector<GradientBucket> buckets;     // of a flat gradient buffer with the parameters of all stages
  std::vector<int> bucket_stages;          // by bucket; kEveryStage: reduced with the first stage of each rank
  Schedule schedule;  // the passes, reductions, gathers of sharded weights, and steps

  /// All parameters, each with the ranges that the rank holds of it (ParameterInfo::held).
  std::vector<ParameterInfo> parameters_of(int rank) const;
  /// The pipeline rank that owns the parameter's stage.
  int owner_of(size_t parameter) const;
  /// True if every pipeline rank holds a shard of the parameter; true if this rank holds at least a part of it.
  bool on_every_stage(size_t parameter) const;
  bool holds(int rank, size_t parameter) const;
  /// See is_updated_as_matrix(OptimizerConfig, ParameterInfo).
  bool is_updated_as_matrix(size_t parameter) const;
  /// Indices of the buckets that are reduced after a stage's backward, by stage.
  std::vector<std::vector<int>> buckets_by_stage() const;
  /// True if the bucket's gradients exist in full only while passes need them, and its weights too with zero_stage 3.
  /// Vocabulary rows that are sharded over the pipeline always exist, because they are used all the time.
  bool belongs_to_unit(size_t bucket) const;
  /// The sharded units: each stage with its buckets, numbered as in buckets_by_stage().
  ShardedUnits units() const;
  /// The row with the gathers and releases of sharded weights that its passes need.
  std::vector<Action> with_gathers(const std::vector<Action>& row) const;
  /// Index pairs (original, copy) of the parameters that two stages hold (the table of a tied head).
  std::vector<std::pair<size_t, size_t>> tied_pairs() const;
  /// All buckets, with their ranges and chunks in the rank's gradient buffer; buckets of other ranks' stages are empty.
  std::vector<GradientBucket> buckets_of(int rank) const;
  /// The lowest rank that holds the same parameter shards.
  int replica_leader(int rank) const;
  /// For each parameter, the range of the rank's shard that lies in the rank's chunk of its bucket. Over the axes of
  /// the bucket, these ranges tile the shard. Buckets have chunks with every zero_stage, to divide the gradient norm.
  std::vector<Range> chunk_parts(int rank) const;
  /// For each parameter, the range whose optimizer state the rank keeps: its shard, or chunk_parts() with ZeRO.
  std::vector<Range> owned_parts(int rank) const;
  /// The same for a rank with these shards, at the position in each bucket's chunks that position_of returns.
  std::vector<Range> owned_parts(const ParameterShard& held,
                                 const std::function<int(size_t bucket)>& position_of) const;
  /// For each parameter, the range whose squares the rank adds to the norm. Exactly one rank counts each element.
  std::vector<Range> counted_in_norm(int rank) const;
  /// The row of the schedule that the rank carries out.
  const std::vector<Action>& row(int rank) const;
};

/// Places the parameters and completes the schedule.
ParameterPlacement place_parameters(Pipeline pipeline);

/// The sizes of the parameter shards of a rank, and its flat buffer. It is the same on all ranks whose shards have
/// equal sizes.
struct ParameterShard {
  /// Without ZeRO no cost of a plan depends on chunks, and `has_chunks` may be false: buckets then have no cuts.
  ParameterShard(const ParameterPlacement& placement, int rank, bool has_chunks = true);

  int64_t elements = 0;        // of the flat buffer
  std::vector<int64_t> sizes;  // elements of each parameter
  FlatLayout flat;
  std::vector<GradientBucket> buckets;  // see ParameterPlacement::buckets_of()

  /// For each parameter, the range of its shard that lies in the chunk of its bucket, at the position that position_of
  /// returns for the bucket's index.
  std::vector<Range> chunk_parts(const std::function<int(size_t bucket)>& position_of) const;
  /// Elements of the rank's chunks of all buckets.
  int64_t chunk_elements(const Mesh& mesh, int rank) const;
};

/// The ParameterShard of every rank. It is computed once per class of ranks whose shards have equal sizes.
class ParameterShards {
 public:
  explicit ParameterShards(const ParameterPlacement& placement);
  const ParameterShard& of(int rank) const { return *shared(rank); }
  /// The same. Ranks of a class have the same pointer.
  const std::shared_ptr<const ParameterShard>& shared(int rank) const;
  /// Positions along the axes that tell parameter shards apart.
  const GroupPositions& positions() const { return positions_; }

 private:
  GroupPositions positions_;
  std::vector<std::shared_ptr<const ParameterShard>> shards_;  // by position
};

}  // namespace orthant

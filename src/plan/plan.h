// Plan: everything about a run that can be known before its first process starts, as one value. It is identical on all
// ranks, can be printed, and is saved with the run. The runtime reads one rank's row of it.
#pragma once

#include "config/from_config.h"
#include "mesh/axes.h"
#include "mesh/layout.h"
#include "mesh/mesh.h"
#include "model/architecture.h"
#include "parallel/data/plan.h"
#include "parallel/sequence/plan.h"
#include "parallel/tensor/traffic_plan.h"
#include "plan/links.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// Facts that planning needs in addition to the run file. Callers find them in the data and from the launcher.
struct RunFacts {
  int ranks = 1;
  int64_t vocab_size = 0;        // of the tokenizer
  Links links = {};              // to estimate times as well as bytes; may be unknown
};

/// Bytes of one rank's tensors, as the allocator will count them.
struct MemoryBytes {
  int64_t parameters = 0;   // master weights, and working copies if their dtype differs
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;  // kept from forward to backward by all live microbatches, their tokens included
  int64_t working = 0;      // peak of messages and temporaries on top of that; rotary tables; step statistics

  int64_t total() const { return parameters + gradients + optimizer + activations + working; }
};

/// A contiguous range of layers on one pipeline rank. The first stage also has the embedding, and the last has the head
/// and the loss, unless the vocabulary is sharded over the pipeline.
struct Stage {
  int owner = 0;  // pipeline rank
  Range layers;
  bool first = false, last = false;
};

/// One kind of message that the ranks send in a step.
struct CommunicationEntry {
  std::string what;        // "gradients, bucket 1 of 3"
  std::string collective;  // "all_reduce"
  std::string axis;
  std::vector<int64_t> calls_per_rank;  // calls per step, by rank
  std::vector<int64_t> bytes_per_rank;  // bytes sent per step, by rank
};

/// Parameters of one stage whose gradients are reduced over the same axes and that are sharded over the same axes
/// (`split`). Vocabulary rows that are sharded over the pipeline belong to no single stage, since every rank has some.
struct ParameterGroup {
  std::vector<std::string> reduced, split;
  int stage = 0;  // or kEveryStage
  bool operator==(const ParameterGroup&) const = default;
};

inline constexpr int kEveryStage = -1;

struct Plan {
  Config config;
  RunFacts facts;
  Architecture architecture;
  Mesh mesh;
  SequencePlan sequence;                   // how sequences are sharded
  TensorPlan tensor;                       // how weights and the residual stream are sharded
  /// Name of the output layer's algorithm (see vocabulary_algorithms()) if the vocabulary is sharded over the pipeline
  /// ranks. Otherwise empty: the first stage has the embedding, and the last has the head.
  std::string vocabulary;
  std::vector<ParameterInfo> parameters;
  std::vector<Layout> layouts;             // by parameter
  std::vector<ParameterGroup> groups;      // by ParameterInfo::group; the first is not sharded
  std::vector<std::string> gradient_axes;  // axes over which gradients are partial sums before their reduction
  std::vector<GradientBucket> buckets;  // of a flat gradient buffer with the parameters of all stages
  std::vector<int> bucket_stages;       // by bucket; kEveryStage: reduced with the first stage of each rank
  std::vector<DataShard> data_shards;   // data shards, by position over kBatchAxes
  std::vector<Stage> stages;            // one if the mesh has one pipeline rank
  Schedule schedule;
  Timeline timeline;                    // from FLOPs, in mean forwards of a microbatch; communication is hidden
  std::vector<MemoryBytes> memory;      // by rank
  std::vector<CommunicationEntry> communication;

  int64_t num_parameters() const;
  int64_t tokens_per_step() const;
  /// All parameters, each with the ranges that the rank holds of it (ParameterInfo::held).
  std::vector<ParameterInfo> parameters_of(int rank) const;
  /// Index of the stage that a parameter belongs to, and the pipeline rank that owns this stage.
  int stage_of(const ParameterInfo& parameter) const;
  int owner_of(size_t parameter) const;
  /// True if every pipeline rank holds a shard of the parameter; true if this rank holds at least a part of it.
  bool on_every_stage(size_t parameter) const;
  bool holds(int rank, size_t parameter) const;
  /// Indices of the buckets that are reduced after a stage's backward, by stage.
  std::vector<std::vector<int>> buckets_by_stage() const;
  /// Index pairs (original, copy) of the parameters that two stages hold (the table of a tied head).
  std::vector<std::pair<size_t, size_t>> copies() const;
  int pipeline_rank(int rank) const { return mesh.coord(rank, kPipeline); }
  /// All buckets, with their ranges in the rank's gradient buffer; buckets of other ranks' stages have empty ranges.
  std::vector<GradientBucket> buckets_of(int rank) const;
  /// The lowest rank that holds the same parameter shards.
  int replica_leader(int rank) const;
  /// The data shard that a rank reads: its index in `shares`, and the shard.
  int data_shard_index(int rank) const;
  const DataShard& data_shard(int rank) const { return data_shards[static_cast<size_t>(data_shard_index(rank))]; }
  /// Positions of the tokens of each sequence that the rank holds, in ascending order; and their number.
  std::vector<int64_t> token_positions(int rank) const;
  int64_t num_token_positions(int rank) const;
  /// The stages that the rank owns, in ascending order.
  std::vector<Stage> stages_on(int rank) const;
  /// Shape [sequences, tokens, width] of this rank's shard of the residual stream for a microbatch of `sequences`
  /// sequences; the tensor sent to the next stage. Its size in bytes. The second form is for sequences of which the
  /// rank's columns hold `tokens` tokens, instead of those of training.
  std::vector<int64_t> stream_shape(int rank, int64_t sequences) const;
  std::vector<int64_t> stream_shape(int rank, int64_t sequences, int64_t tokens) const;
  int64_t stream_bytes(int rank, int64_t sequences) const;
  /// The rank's vocabulary rows if the vocabulary is sharded over the pipeline, and within each shard over columns.
  Range vocabulary_rows(int rank) const;
  /// True if ranks make the optimizer step before all ranks know that the gradient norm permits it.
  bool post_validates() const { return config.parallelism.pipeline_parallel_post_validation; }
  /// The row of the schedule that the rank carries out.
  const std::vector<Action>& row(int rank) const;
  /// The mesh as text for people, without axes of size 1.
  std::string mesh_text() const;
  /// The same. If tensor_parallel_kind was "auto", the text names the selected kind.
  std::string mesh_and_kind() const;
  int64_t largest_memory_bytes() const;
  int64_t largest_communication_bytes() const;
};

/// Parameters whose squared gradient norms are summed over the same axes. Each parameter has its own slot, so that the
/// gradient norm is the same number for every split into stages.
struct NormSlots {
  std::vector<std::string> axes;
  std::vector<size_t> parameters;
};
std::vector<NormSlots> norm_slots(const Plan& plan);

/// Returns the sizes of one layer's attention, with one column's heads, for a microbatch of `sequences` sequences.
SequenceAttention attention_of(const Plan& plan, int64_t sequences);
/// Returns the sizes that tensor parallelism needs of such a microbatch on a rank.
TensorShape tensor_shape_of(const Plan& plan, int rank, int64_t sequences);

/// The plan of generation: the ranks of one replica continue a text, and each holds all of its tokens, because they
/// compute one token at a time. Columns that shard the residual stream by tokens replicate it instead.
Plan make_generation_plan(Plan plan);

/// Plans the run; a pure function of config and facts. tensor_parallel_kind must not be "auto", which advised_plan()
/// resolves. Throws ConfigError if the run is impossible.
Plan make_plan(const Config& config, const RunFacts& facts);

/// Elements of the float64 vector that all ranks sum after each step: loss, stop signals and the memory peak of every
/// rank in bytes. Each rank fills only its own peak and leaves the others zero, so that the sum gathers them.
struct StepSignals {
  static constexpr int kLoss = 0, kTerminate = 1, kInterrupt = 2, kFirstPeakBytes = 3;
  static int64_t elements(int ranks) { return kFirstPeakBytes + int64_t{ranks}; }
};

}  // namespace orthant

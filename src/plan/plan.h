// Plan: everything about a run that can be known before its first process starts, as one value. Identical on all ranks,
// printable, saved with the run; the runtime reads one rank's row of it.
#pragma once

#include "mesh/axes.h"
#include "mesh/layout.h"
#include "mesh/mesh.h"
#include "model/architecture.h"
#include "parallel/data/plan.h"
#include "parallel/sequence/plan.h"
#include "parallel/tensor/traffic_plan.h"
#include "plan/config.h"
#include "plan/links.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

#include <cstdint>
#include <string>
#include <vector>

namespace orthant {

/// What planning has to be told about the world: found by looking at the data and at the launcher.
struct RunFacts {
  int ranks = 1;
  int64_t vocab_size = 0;        // of the tokenizer
  Links links = {};              // for times beside bytes, where they are known
};

/// Bytes of one rank, each as the allocator will count it.
struct MemoryBytes {
  int64_t parameters = 0;   // masters, and working copies where their dtype differs
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;  // kept from forward to backward, all live microbatches
  int64_t working = 0;      // the largest temporaries on top of that; tables and batches

  int64_t total() const { return parameters + gradients + optimizer + activations + working; }
};

/// A contiguous run of layers on one pipeline rank; the first stage embeds too, the last has the head and the loss.
struct Stage {
  int owner = 0;  // pipeline rank
  Range layers;
  bool first = false, last = false;
};

/// One kind of message that a step sends.
struct CommunicationEntry {
  std::string what;        // "gradients, bucket 1 of 3"
  std::string collective;  // "all_reduce"
  std::string axis;
  std::vector<int64_t> calls_per_rank;  // a step, by rank
  std::vector<int64_t> bytes_per_rank;  // sent a step, by rank
};

/// The same run with one thing changed.
struct Alternative {
  std::string change;
  int64_t memory_bytes = 0;          // of the largest rank
  int64_t communication_bytes = 0;   // sent a step by the busiest rank
  std::string remark;
};

/// Parameters of one stage whose gradients are complete after the same reductions, and that are split over the same
/// axes. Rows of the vocabulary that are cut over the pipeline are of none: every rank has some.
struct ParameterGroup {
  std::vector<std::string> reduced, split;
  int stage = 0;  // or kEveryStage
  bool operator==(const ParameterGroup&) const = default;
};

inline constexpr int kEveryStage = -1;

/// Another arrangement of the tensor mesh's ranks.
struct TensorChoice {
  std::string name;     // "[2, 2, 1]", "1d, 4 columns, sequence"
  TensorPlan tensor;
  TensorWords words;    // of a layer, a step
  int64_t sent_bytes = 0;    // of everything, a step, by the busiest rank
  int64_t memory_bytes = 0;  // of the largest rank
  std::string refusal;  // why it cannot be; empty if it can
  bool chosen = false;
};

struct Plan {
  Config config;
  RunFacts facts;
  Architecture architecture;
  Mesh mesh;
  SequencePlan sequence;                   // how sequences are cut
  TensorPlan tensor;                       // how weights and the residual stream are
  /// The order of the output layer, of vocabulary_algorithms(), where the vocabulary is cut over the pipeline's ranks;
  /// else empty: the first stage embeds, and the last has the head.
  std::string vocabulary;
  std::vector<ParameterInfo> parameters;
  std::vector<Layout> layouts;             // of the parameters
  std::vector<ParameterGroup> groups;      // by ParameterInfo::group; the first: split over none
  std::vector<std::string> gradient_axes;  // over which gradients are partial sums until they are reduced
  std::vector<GradientBucket> buckets;  // of a flat gradient buffer that holds all stages
  std::vector<int> bucket_stages;       // by bucket; kEveryStage: reduced with each rank's first
  std::vector<DataShare> shares;        // by position over kBatchAxes
  std::vector<Stage> stages;            // one where the mesh has one pipeline rank
  Schedule schedule;
  Timeline timeline;                    // by FLOPs, in a rank's mean forwards of a microbatch; communication hidden
  std::vector<MemoryBytes> memory;      // by rank
  std::vector<CommunicationEntry> communication;
  std::vector<Alternative> alternatives;
  std::vector<TensorChoice> tensor_choices;  // empty for a tensor mesh of one rank

  int64_t num_parameters() const;
  int64_t tokens_per_step() const;
  /// The parameters, with what a rank holds of them, and the buckets of their gradients.
  std::vector<ParameterInfo> parameters_of(int rank) const;
  /// The stage that a parameter belongs to, and the rank's place in the pipeline.
  int stage_of(const ParameterInfo& parameter) const;
  int owner_of(size_t parameter) const;  // the pipeline rank
  /// Whether all pipeline ranks have a part of it; whether this rank's stages have one.
  bool on_every_stage(size_t parameter) const;
  bool holds(int rank, size_t parameter) const;
  /// Of each stage the buckets that are reduced behind it, as positions.
  std::vector<std::vector<int>> buckets_by_stage() const;
  /// Parameters that stand on two stages, as positions: the original, and its copy (a tied head's table).
  std::vector<std::pair<size_t, size_t>> copies() const;
  int pipeline_rank(int rank) const { return mesh.coord(rank, kPipeline); }
  std::vector<GradientBucket> buckets_of(int rank) const;
  /// The first of the ranks that hold the same of the parameters as this one.
  int first_like(int rank) const;
  /// What a rank reads of each batch, and what it does.
  int share_index(int rank) const;
  const DataShare& share(int rank) const { return shares[static_cast<size_t>(share_index(rank))]; }
  /// Places of the tokens of each sequence that it holds, ascending.
  std::vector<int64_t> places(int rank) const;
  int64_t num_places(int rank) const;
  /// Its stages, the first first.
  std::vector<Stage> stages_on(int rank) const;
  /// Of the residual stream what the rank has in a microbatch of so many sequences, and sends to the next stage.
  std::vector<int64_t> stream_shape(int rank, int64_t sequences) const;
  int64_t stream_bytes(int rank, int64_t sequences) const;
  /// The rank's rows of the vocabulary, where it is cut over the pipeline, and then over columns.
  Range vocabulary_rows(int rank) const;
  /// Whether ranks step before all know that they may.
  bool post_validates() const { return config.parallelism.pipeline_parallel_post_validation; }
  const std::vector<Action>& row(int rank) const;
  /// The mesh for people: axes of size 1 left out.
  std::string mesh_text() const;
  int64_t largest_memory_bytes() const;
  int64_t largest_communication_bytes() const;
};

/// Parameters whose gradients' squares are added up over the same axes, each in a slot of its own, so that the norm is
/// the same number whatever the stages.
struct NormSlots {
  std::vector<std::string> axes;
  std::vector<size_t> parameters;
};
std::vector<NormSlots> norm_slots(const Plan& plan);

/// One layer's attention on a microbatch of so many sequences, of one column's heads.
SequenceAttention attention_of(const Plan& plan, int64_t sequences);
/// What tensor parallelism sees of it on a rank.
TensorShape tensor_shape_of(const Plan& plan, int rank, int64_t sequences);

/// The id that masks others where model.objective = "masked": the one behind the tokenizer's own.
constexpr int64_t mask_token(int64_t tokenizer_vocab_size) { return tokenizer_vocab_size; }

/// Config -> Plan, a pure function. Throws ConfigError.
Plan make_plan(const Config& config, const RunFacts& facts);

/// What every rank must know of the others after each step, in float64: sums over all ranks, then the memory peak of
/// each rank (zero elsewhere, so that the sum gathers them).
struct StepSignals {
  static constexpr int kLoss = 0, kTerminate = 1, kInterrupt = 2, kFirstPeakBytes = 3;
  static int64_t elements(int ranks) { return kFirstPeakBytes + int64_t{ranks}; }
};

/// The plan for people: mesh, who holds what, who does what when, bytes, memory, alternatives.
std::string explain(const Plan& plan);
/// The plan as JSON, fields as documented for `orthant plan --json`.
std::string plan_json(const Plan& plan);

/// Bytes of an element: "float32" 4, "bfloat16" 2, "float64" 8.
int dtype_bytes(const std::string& dtype);
/// Of a master weight, a gradient or a moment: 8 for float64, else 4.
int master_bytes(const Config& config);

}  // namespace orthant

// The first step of planning: the model, the mesh, and how batch, sequences, weights and vocabulary are sharded over
// it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/from_config.h"
#include "hardware/hardware.h"
#include "mesh/axes.h"
#include "mesh/mesh.h"
#include "model/architecture.h"
#include "parallel/data/plan.h"
#include "parallel/data/zero_plan.h"
#include "parallel/sequence/plan.h"
#include "parallel/tensor/traffic_plan.h"

namespace orthant {

/// Facts that planning needs in addition to the run file. Callers find them in the data and from the launcher.
struct RunFacts {
  int ranks = 1;
  int64_t vocab_size = 0;  // of the tokenizer
  std::shared_ptr<const Hardware> hardware = {};  // to compute seconds; may be null
};

/// The facts of a run on run.ranks ranks whose tokenizer has model.vocab_size entries, the mask token included. They
/// contain no hardware. Throws ConfigError if the run file does not set model.vocab_size.
RunFacts facts_of_model(const Config& config);

/// The run as a mesh of ranks, and the shards of each rank.
struct Sharding {
  Config config;  // settings without effect on this mesh have their defaults: see without_idle_settings()
  Config given;   // the same with these settings as they are given
  RunFacts facts;
  Architecture architecture;
  Mesh mesh;
  SequencePlan sequence;               // how sequences are sharded
  TensorPlan tensor;                   // how weights and the residual stream are sharded
  std::vector<DataShard> data_shards;  // data shards, by position over batch_axes()
  /// Name of the output layer's algorithm (see vocabulary_algorithms()) if the vocabulary is sharded over the pipeline
  /// ranks. Otherwise empty: the first stage has the embedding, and the last has the head.
  std::string vocabulary;

  int64_t num_parameters() const;
  int64_t tokens_per_step() const;
  int pipeline_rank(int rank) const { return mesh.coord(rank, kPipeline); }
  /// The data shard that a rank reads: its index in `data_shards`, and the shard.
  int data_shard_index(int rank) const;
  const DataShard& data_shard(int rank) const { return data_shards[static_cast<size_t>(data_shard_index(rank))]; }
  /// Positions of the tokens of each sequence that the rank holds, in ascending order; and their number.
  std::vector<int64_t> token_positions(int rank) const;
  int64_t num_token_positions(int rank) const;
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
  /// The mesh as text for people, without axes of size 1. The copies of ZeRO's shards are part of the data axis.
  std::string mesh_text() const;
  /// ", ZeRO 3, reshard step", or nothing without ZeRO.
  std::string zero_text() const;
  /// Both texts, and the selected kind if tensor_parallel_kind was "auto".
  std::string mesh_and_kind() const;
  /// True if each rank keeps, of its own chunks of the parameters only, the optimizer's state (zero_stage 1), the
  /// gradients (2) and the weights (3). Gradients and weights exist in full while a pass needs them.
  bool shards_optimizer() const { return config.parallelism.zero_stage >= 1; }
  bool shards_gradients() const { return config.parallelism.zero_stage >= 2; }
  bool shards_weights() const { return config.parallelism.zero_stage >= 3; }
  /// The gradients, and the working values of the weights, that a rank keeps between the passes of a step. Those of
  /// buckets that belong to no unit always exist in full.
  KeptElements kept_gradients() const { return orthant::kept_gradients(config); }
  KeptElements kept_values() const { return shards_weights() ? KeptElements::owned : KeptElements::all; }
  /// See has_gradients_by_unit(Config).
  bool has_gradients_by_unit() const { return orthant::has_gradients_by_unit(config); }
  /// The axes over which sharded states have copies; their gradients are summed over these after the reduce-scatter.
  Axes copy_axes() const { return mesh.has(kReplica) ? Axes{kReplica} : Axes{}; }
  Reshard reshard() const { return reshard_named(config.parallelism.zero_reshard); }
};

/// Shards the run; a pure function of config and facts. Throws ConfigError if the mesh cannot train the model and
/// batch.
Sharding make_sharding(const Config& config, const RunFacts& facts);

/// Returns the sizes of one layer's attention, with one column's heads, for a microbatch of `sequences` sequences.
SequenceAttention attention_of(const Sharding& sharding, int64_t sequences);
/// Returns the sizes that tensor parallelism needs of such a microbatch on a rank.
TensorShape tensor_shape_of(const Sharding& sharding, int rank, int64_t sequences);

}  // namespace orthant

// Shards the run, and answers questions about the shards of a rank.
#include "plan/sharding.h"

#include <fmt/format.h>

#include "base/errors.h"
#include "base/text.h"
#include "config/parallelism_check.h"
#include "parallel/tensor/key_heads_plan.h"
#include "plan/plan_limits.h"
#include "plan/vocabulary.h"

namespace orthant {

RunFacts facts_of_model(const Config& config) {
  const bool has_mask_token = config.model.objective == "masked";
  if (config.model.vocab_size <= has_mask_token) {
    throw ConfigError(fmt::format(
        "{} must be at least {} to plan without the tokenizer; set it to the number of the tokenizer's entries{}",
        config.locate("model.vocab_size"), has_mask_token ? 2 : 1, has_mask_token ? " and the mask token" : ""));
  }
  return {.ranks = static_cast<int>(config.run.ranks),
          .vocab_size = config.model.vocab_size - (has_mask_token ? 1 : 0)};
}

Sharding make_sharding(const Config& given, const RunFacts& facts) {
  Sharding sharding;
  sharding.facts = facts;
  sharding.architecture = make_architecture(given, facts.vocab_size);
  require_countable(given, sharding.architecture, facts.ranks);
  sharding.mesh = make_mesh(given, facts.ranks);
  sharding.given = given;
  const Config& config = sharding.config = without_idle_settings(given, sharding.mesh);
  sharding.sequence = make_sequence_plan(given, sharding.mesh);
  sharding.tensor = make_tensor_plan(config, sharding.mesh, sharding.sequence);
  const int shards = sharding.mesh.group_size(batch_axes(sharding.mesh));
  const auto& training = config.training;
  for (int coord = 0; coord < shards; ++coord) {
    sharding.data_shards.push_back(
        make_data_shard(training.global_batch_size, training.local_batch_size, shards, coord));
  }
  sharding.vocabulary = vocabulary_order_of(config);
  return sharding;
}

int64_t Sharding::num_parameters() const { return orthant::num_parameters(architecture); }

int Sharding::data_shard_index(int rank) const { return mesh.group_index(rank, batch_axes(mesh)); }

SequenceAttention attention_of(const Sharding& sharding, int64_t sequences) {
  SequenceAttention attention = attention_of(sharding.config, sharding.architecture, sequences);
  const AttentionHeads heads =
      heads_of_column({attention.heads, attention.key_heads, attention.head_dim}, sharding.tensor.columns);
  attention.heads = heads.query;
  attention.key_heads = heads.key;
  return attention;
}

TensorShape tensor_shape_of(const Sharding& sharding, int rank, int64_t sequences) {
  const Architecture& a = sharding.architecture;
  const SequenceAttention attention = attention_of(sharding, sequences);
  const std::vector<Operation> block = block_operations(a);
  return {.sequences = sequences,
          .tokens = sharding.num_token_positions(rank),
          .hidden = a.hidden_size,
          .vocabulary = a.vocab_size,
          .block = column_operations(block, sharding.tensor, sharding.mesh.coord(rank, kColumn)),
          .recomputed = make_recomputation(sharding.config).ranges(block),
          .loss_chunk = loss_chunk_rows(shard(a.vocab_size, sharding.tensor.columns, 0).size(),
                                        sharding.config.run.device == "cuda"),
          .norm_statistics = stream_norm(a, "model.norm").statistics,
          .loss_statistics = make_output_loss(sharding.config).statistics(),
          .element_bytes = attention.element_bytes,
          .sum_bytes = attention.sum_bytes(),
          .on_gpu = sharding.config.run.device == "cuda",
          .over_nccl = uses_nccl(sharding.config)};
}

int64_t Sharding::num_token_positions(int rank) const {
  return num_held_positions(sequence.placement, config.training.seq_len, sequence.ulysses, mesh.coord(rank, kUlysses),
                            sequence.ring, mesh.coord(rank, kRing));
}

std::vector<int64_t> Sharding::token_positions(int rank) const {
  return held_positions(sequence.placement, config.training.seq_len, sequence.ulysses, mesh.coord(rank, kUlysses),
                        sequence.ring, mesh.coord(rank, kRing));
}

std::vector<int64_t> Sharding::stream_shape(int rank, int64_t sequences) const {
  return stream_shape(rank, sequences, num_token_positions(rank));
}

std::vector<int64_t> Sharding::stream_shape(int rank, int64_t sequences, int64_t tokens) const {
  const int column = mesh.coord(rank, kColumn);
  const auto part = [&](int64_t extent) { return shard(extent, tensor.columns, column).size(); };
  const int64_t width = architecture.hidden_size;
  return {sequences, tensor.stream == StreamSharding::tokens ? part(tokens) : tokens,
          tensor.stream == StreamSharding::width ? part(width) : width};
}

int64_t Sharding::stream_bytes(int rank, int64_t sequences) const {
  const auto shape = stream_shape(rank, sequences);
  return shape[0] * shape[1] * shape[2] * dtype_bytes(config.training.dtype);
}

Range Sharding::vocabulary_rows(int rank) const {
  const Range slice = shard(architecture.vocab_size, mesh.axis_size(kPipeline), pipeline_rank(rank));
  const Range rows = shard(slice.size(), tensor.columns, mesh.coord(rank, kColumn));
  return {slice.begin + rows.begin, slice.begin + rows.end};
}

std::string Sharding::mesh_text() const {
  const int copies = mesh.axis_size(kReplica), data = data_ranks(mesh);
  std::vector<std::string> parts;
  for (const Axis& axis : mesh.axes) {
    const int size = axis.name == kData ? data : axis.name == kReplica ? 1 : axis.size;
    if (size > 1) parts.push_back(fmt::format("{} {}", axis.name, size));
    if (axis.name == kData && copies > 1) parts.back() += fmt::format(" ({} copies of {} ranks)", copies, axis.size);
  }
  const bool data_is_outermost = config.parallelism.outer_axis == "data" && data > 1 && mesh.axis_size(kPipeline) > 1;
  if (data_is_outermost) parts.emplace_back("data outermost");
  return parts.empty() ? "1 rank" : join(parts, ", ");
}

std::string Sharding::zero_text() const {
  if (!shards_optimizer()) return "";
  const std::string reshard = shards_weights() ? ", reshard " + config.parallelism.zero_reshard : "";
  return fmt::format(", ZeRO {}{}", config.parallelism.zero_stage, reshard);
}

std::string Sharding::mesh_and_kind() const {
  const auto origin = config.origins.find("parallelism.tensor_parallel_kind");
  std::string text = mesh_text();
  if (origin != config.origins.end() && origin->second == kChosenByAuto) {
    text += fmt::format(" (\"{}\", {})", config.parallelism.tensor_parallel_kind, kChosenByAuto);
  }
  return text + zero_text();
}

int64_t Sharding::tokens_per_step() const { return config.training.global_batch_size * config.training.seq_len; }

}  // namespace orthant

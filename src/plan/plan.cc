// Makes a Plan: mesh, sharding, schedule, stages, parameters, timeline, memory and messages, in this order.
#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "config/from_config.h"
#include "parallel/pipeline/post_validation_plan.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/plan_limits.h"
#include "plan/plan_memory.h"
#include "plan/plan_parameters.h"
#include "plan/plan_traffic.h"
#include "plan/vocabulary.h"
#include "schedule/validate.h"

namespace orthant {

Plan make_plan(const Config& config, const RunFacts& facts) {
  Plan plan;
  plan.config = config;
  plan.facts = facts;
  plan.architecture = make_architecture(config, facts.vocab_size);
  require_countable(config, plan.architecture, facts.ranks);
  plan.mesh = make_mesh(config, facts.ranks);
  plan.parameters = parameter_table(plan.architecture);
  plan.sequence = make_sequence_plan(config, plan.mesh);
  plan.tensor = make_tensor_plan(config, plan.mesh, plan.sequence);
  plan.gradient_axes = kOverData;
  if (plan.tensor.depth > 1) plan.gradient_axes.emplace_back(kDepth);
  if (plan.tensor.rows > 1) plan.gradient_axes.emplace_back(kRow);
  if (plan.tensor.columns > 1 && plan.tensor.stream == StreamSharding::tokens) plan.gradient_axes.emplace_back(kColumn);
  if (plan.sequence.ulysses > 1) plan.gradient_axes.push_back(kUlysses);
  if (plan.sequence.ring > 1) plan.gradient_axes.push_back(kRing);
  const int data_ranks = plan.mesh.group_size(kBatchAxes);
  const auto& training = config.training;
  for (int coord = 0; coord < data_ranks; ++coord) {
    plan.data_shards.push_back(
        make_data_shard(training.global_batch_size, training.local_batch_size, data_ranks, coord));
  }
  const int microbatches = num_microbatches(training.global_batch_size, training.local_batch_size, data_ranks);
  const int64_t layers = plan.architecture.num_hidden_layers;
  plan.vocabulary = vocabulary_order_of(config, plan.mesh);
  plan.schedule = schedule_of(config, plan.mesh.axis_size(kPipeline), data_ranks, layers);
  plan.stages = stages_of(config, plan.schedule.stage_owner, plan.architecture);
  plan.schedule = fit_schedule_to_stages(plan);
  if (!plan.vocabulary.empty()) plan.schedule = with_vocabulary(plan);
  lay_out_parameters(plan);
  std::vector<int> buckets;
  for (const auto& of_stage : plan.buckets_by_stage()) buckets.push_back(static_cast<int>(of_stage.size()));
  plan.schedule = add_reductions(plan.schedule, buckets);
  if (plan.post_validates()) plan.schedule = with_post_validation(plan.schedule);
  validate(plan.schedule, microbatches, buckets);
  plan.timeline = simulate(plan.schedule, estimate_durations(plan));
  plan.timeline.unit = "mean forwards of a rank";
  const ParameterShards held(plan);
  add_memory(plan, held);
  add_activation_traffic(plan);
  add_gradient_traffic(plan, held);
  return plan;
}

int64_t Plan::num_parameters() const { return orthant::num_parameters(architecture); }

int Plan::data_shard_index(int rank) const { return mesh.group_index(rank, kBatchAxes); }

SequenceAttention attention_of(const Plan& plan, int64_t sequences) {
  SequenceAttention attention = attention_of(plan.config, plan.architecture, sequences);
  attention.heads /= plan.tensor.columns;
  attention.key_heads /= plan.tensor.columns;
  return attention;
}

TensorShape tensor_shape_of(const Plan& plan, int rank, int64_t sequences) {
  const Architecture& a = plan.architecture;
  const SequenceAttention attention = attention_of(plan, sequences);
  return {.sequences = sequences,
          .tokens = plan.num_token_positions(rank),
          .hidden = a.hidden_size,
          .vocabulary = a.vocab_size,
          .block = column_operations(block_operations(a), plan.tensor, plan.mesh.coord(rank, kColumn)),
          .loss_chunk = loss_chunk_rows(shard(a.vocab_size, plan.tensor.columns, 0).size()),
          .loss_statistics = make_output_loss(plan.config).statistics(),
          .element_bytes = attention.element_bytes,
          .sum_bytes = attention.sum_bytes()};
}

Plan make_generation_plan(Plan plan) {
  plan.sequence = {};
  if (plan.tensor.stream == StreamSharding::tokens) plan.tensor.stream = StreamSharding::none;
  return plan;
}

int64_t Plan::num_token_positions(int rank) const {
  return num_held_positions(sequence.placement, config.training.seq_len, sequence.ulysses, mesh.coord(rank, kUlysses),
                            sequence.ring, mesh.coord(rank, kRing));
}

std::vector<int64_t> Plan::token_positions(int rank) const {
  return held_positions(sequence.placement, config.training.seq_len, sequence.ulysses, mesh.coord(rank, kUlysses),
                        sequence.ring, mesh.coord(rank, kRing));
}

const std::vector<Action>& Plan::row(int rank) const {
  return schedule.rows[static_cast<size_t>(pipeline_rank(rank))];
}

std::vector<Stage> Plan::stages_on(int rank) const {
  std::vector<Stage> own;
  for (const Stage& stage : stages) {
    if (stage.owner == pipeline_rank(rank)) own.push_back(stage);
  }
  return own;
}

std::vector<int64_t> Plan::stream_shape(int rank, int64_t sequences) const {
  return stream_shape(rank, sequences, num_token_positions(rank));
}

std::vector<int64_t> Plan::stream_shape(int rank, int64_t sequences, int64_t tokens) const {
  const int column = mesh.coord(rank, kColumn);
  const auto part = [&](int64_t extent) { return shard(extent, tensor.columns, column).size(); };
  const int64_t width = architecture.hidden_size;
  return {sequences, tensor.stream == StreamSharding::tokens ? part(tokens) : tokens,
          tensor.stream == StreamSharding::width ? part(width) : width};
}

int64_t Plan::stream_bytes(int rank, int64_t sequences) const {
  const auto shape = stream_shape(rank, sequences);
  return shape[0] * shape[1] * shape[2] * dtype_bytes(config.training.dtype);
}

Range Plan::vocabulary_rows(int rank) const {
  const Range slice = shard(architecture.vocab_size, mesh.axis_size(kPipeline), pipeline_rank(rank));
  const Range rows = shard(slice.size(), tensor.columns, mesh.coord(rank, kColumn));
  return {slice.begin + rows.begin, slice.begin + rows.end};
}

std::string Plan::mesh_text() const {
  std::string text;
  for (const Axis& axis : mesh.axes) {
    if (axis.size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", axis.name, axis.size);
  }
  return text.empty() ? "one rank" : text;
}

std::string Plan::mesh_and_kind() const {
  const auto origin = config.origins.find("parallelism.tensor_parallel_kind");
  if (origin == config.origins.end() || origin->second != kChosenByAuto) return mesh_text();
  return fmt::format("{} (\"{}\", {})", mesh_text(), config.parallelism.tensor_parallel_kind, kChosenByAuto);
}

int64_t Plan::tokens_per_step() const { return config.training.global_batch_size * config.training.seq_len; }

int64_t Plan::largest_memory_bytes() const {
  int64_t largest = 0;
  for (const auto& rank : memory) largest = std::max(largest, rank.total());
  return largest;
}

int64_t Plan::largest_communication_bytes() const {
  std::vector<int64_t> sums(memory.size());
  for (const auto& entry : communication) {
    for (size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += entry.bytes_per_rank[rank];
  }
  return *std::max_element(sums.begin(), sums.end());
}

}  // namespace orthant

// Makes a Plan: mesh, sharding, schedule, stages, parameters, timeline, memory and messages, in this order. The
// alternatives are further plans of changed configurations.
#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "parallel/pipeline/post_validation_plan.h"
#include "plan/config_refusal.h"
#include "plan/from_config.h"
#include "plan/pipeline.h"
#include "plan/plan_limits.h"
#include "plan/plan_memory.h"
#include "plan/plan_once.h"
#include "plan/plan_parameters.h"
#include "plan/plan_traffic.h"
#include "plan/tensor_choices.h"
#include "plan/vocabulary.h"
#include "schedule/validate.h"

namespace orthant {

Plan plan_once(const Config& config, const RunFacts& facts) {
  Plan plan;
  plan.config = config;
  plan.facts = facts;
  plan.architecture = make_architecture(config, facts.vocab_size);
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

namespace {

// Plans the changed run and appends it to `found`, unless planning refuses it.
void add_alternative(std::vector<Alternative>& found, const Config& config, const RunFacts& facts, std::string change,
                     std::string remark) {
  try {
    require_countable(config, make_architecture(config, facts.vocab_size), facts.ranks);
    const Plan plan = plan_once(config, facts);
    found.push_back(
        {std::move(change), plan.largest_memory_bytes(), plan.largest_communication_bytes(), std::move(remark)});
  } catch (const ConfigError&) {
    // The run is legal, but not with this change.
  }
}

std::vector<Alternative> alternatives_to(const Plan& plan) {
  std::vector<Alternative> found;
  auto with = [&](auto change) {
    Config other = plan.config;
    change(other);
    return other;
  };
  const auto& config = plan.config;
  if (config.activation_checkpoint.mode == "none") {
    add_alternative(found, with([](Config& c) { c.activation_checkpoint.mode = "full"; }), plan.facts,
                    "activation_checkpoint.mode = \"full\"", "every block runs forward twice");
  } else {
    add_alternative(found, with([](Config& c) { c.activation_checkpoint.mode = "none"; }), plan.facts,
                    "activation_checkpoint.mode = \"none\"", "no block runs forward twice");
  }
  if (config.training.local_batch_size > 1) {
    const int64_t half = config.training.local_batch_size / 2;
    add_alternative(found, with([&](Config& c) { c.training.local_batch_size = half; }), plan.facts,
                    fmt::format("training.local_batch_size = {}", half), "more and smaller products");
  }
  if (config.training.dtype != "bfloat16") {
    add_alternative(found, with([](Config& c) { c.training.dtype = "bfloat16"; }), plan.facts,
                    "training.dtype = \"bfloat16\"", "float32 masters and gradients stay");
  }
  const SequencePlan& sequence = plan.sequence;
  for (const int ranks : {1, 2, 4, 8}) {
    const int pipeline = plan.mesh.axis_size(kPipeline);
    const int others = sequence.ulysses * sequence.ring * plan.tensor.ranks() * pipeline;
    if (ranks == plan.facts.ranks || ranks % others != 0) continue;
    RunFacts facts = plan.facts;
    facts.ranks = ranks;
    Config other = config;
    other.parallelism.context_parallel_ulysses = sequence.ulysses;
    other.parallelism.context_parallel_ring = sequence.ring;
    if (config.parallelism.tensor_parallel_kind == "1d")
      other.parallelism.tensor_parallel_degree = plan.tensor.columns;
    other.parallelism.pipeline_parallel_degree = pipeline;
    other.parallelism.data_parallel_degree = -1;
    add_alternative(found, other, facts, fmt::format("run.ranks = {}", ranks), "");
  }
  return found;
}

}  // namespace

int dtype_bytes(const std::string& dtype) { return dtype == "bfloat16" ? 2 : dtype == "float64" ? 8 : 4; }

int master_bytes(const Config& config) { return config.training.dtype == "float64" ? 8 : 4; }

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
  const auto part = [&](int64_t extent) {
    return shard(extent, plan.tensor.columns, plan.mesh.coord(rank, kColumn)).size();
  };
  const SequenceAttention attention = attention_of(plan, sequences);
  return {.sequences = sequences,
          .tokens = plan.num_token_positions(rank),
          .hidden = a.hidden_size,
          .vocabulary = a.vocab_size,
          .qkv_rows = (attention.heads + 2 * attention.key_heads) * a.head_dim,
          .gate_up_rows = 2 * part(a.intermediate_size),
          .attention = a.num_attention_heads * a.head_dim,
          .intermediate = a.intermediate_size,
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

namespace {

// Plans the run. With tensor_parallel_kind = "auto", it selects the tensor mesh first.
Plan plan_of_choice(const Config& config, const RunFacts& facts) {
  require_countable(config, make_architecture(config, facts.vocab_size), facts.ranks);
  if (config.parallelism.tensor_parallel_kind != "auto") return plan_once(config, facts);
  const int tensor_ranks = make_mesh(config, facts.ranks).axis_size(kColumn);
  const auto plan_of = [&](const Config& other) { return plan_once(other, facts); };
  return plan_once(with_cheapest_tensor_plan(config, tensor_ranks, plan_of), facts);
}

// Like plan_of_choice(), but completes the ways out of a refusal.
Plan plan_or_refuse(const Config& config, const RunFacts& facts) {
  try {
    return plan_of_choice(config, facts);
  } catch (const Refusal& refusal) {
    throw completed(refusal, config, [&](const Config& other) {
      RunFacts of_other = facts;
      if (other.run.ranks != config.run.ranks) of_other.ranks = static_cast<int>(other.run.ranks);
      check_laws(other, {.cuda = true, .nccl = true, .no_ucx = {}});
      plan_of_choice(other, of_other);
    });
  }
}

}  // namespace

Plan make_plan(const Config& config, const RunFacts& facts) {
  Plan plan = plan_or_refuse(config, facts);
  plan.tensor_choices = tensor_choices(plan, [&](const Config& other) { return plan_once(other, facts); });
  plan.alternatives = alternatives_to(plan);
  require_fitting(plan);
  return plan;
}

}  // namespace orthant

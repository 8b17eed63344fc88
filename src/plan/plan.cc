#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "base/text.h"
#include "plan/from_config.h"
#include "plan/plan_limits.h"
#include "plan/plan_parameters.h"
#include "plan/stages.h"
#include "plan/tensor_choices.h"
#include "plan/tensor_memory.h"
#include "schedule/validate.h"

namespace orthant {
namespace {

MemoryBytes memory_of_rank(const Plan& plan, const FlatLayout& flat, int rank) {
  const Config& config = plan.config;
  const auto& share = plan.share(rank);
  const int64_t largest = share.microbatches.front().size();  // none is larger
  const int element = dtype_bytes(config.training.dtype), master = master_bytes(config);
  const bool recompute = config.activation_checkpoint.mode == "full";
  const int64_t tokens = largest * plan.num_places(rank);
  const SequenceMemory attention = sequence_memory(plan.sequence, attention_of(plan, largest),
                                                   plan.mesh.coord(rank, "ulysses"), plan.mesh.coord(rank, "ring"));
  const AttentionBytes core{attention.kept_bytes, attention.working_bytes};
  const bool whole = plan.tensor.rows * plan.tensor.columns == 1;
  const ActivationBytes activations =
      whole ? activation_bytes(plan.architecture, tokens, element, recompute, core)
            : tensor_activation_bytes(plan.architecture, plan.tensor, tensor_shape_of(plan, rank, largest), recompute,
                                      core);
  MemoryBytes memory;
  memory.parameters = flat.elements * (element == master ? master : master + element);
  memory.gradients = flat.elements * master;
  memory.optimizer = 2 * flat.elements * master;
  memory.activations = activations.kept;
  const int64_t tables = plan.architecture.max_position_embeddings * plan.architecture.head_dim * master;
  const int64_t batch = 3 * tokens * 8;
  memory.working = activations.working_peak + tables + batch;
  return memory;
}

// Messages of a step by their kind, as the ranks one after the other say what they send.
class MessageTable {
 public:
  explicit MessageTable(size_t ranks) : ranks_(ranks) {}
  template <class Messages>
  void add(size_t rank, const Messages& messages, const char* when, int64_t times) {
    if (times == 0) return;
    for (const auto& m : messages)
      add(rank, m.what + ", " + when, m.collective, m.axis, m.calls * times, m.bytes * times);
  }
  void add(size_t rank, const std::string& what, const std::string& collective, const std::string& axis, int64_t calls,
           int64_t bytes) {
    const auto [place, is_new] = places_.try_emplace({what, collective, axis}, entries_.size());
    const std::vector<int64_t> none(ranks_);
    if (is_new) entries_.push_back({what, collective, axis, none, none});
    entries_[place->second].calls_per_rank[rank] += calls;
    entries_[place->second].bytes_per_rank[rank] += bytes;
  }
  std::vector<CommunicationEntry> take() { return std::move(entries_); }

 private:
  size_t ranks_;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> places_;
  std::vector<CommunicationEntry> entries_;
};

// What blocks, what stands around them, and stages among each other send in all microbatches of a step.
void add_activations(Plan& plan) {
  const int64_t forwards = plan.config.activation_checkpoint.mode == "full" ? 2 : 1;
  const auto ranks = static_cast<size_t>(plan.mesh.size());
  MessageTable table(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int at = static_cast<int>(rank), u = plan.mesh.coord(at, "ulysses"), r = plan.mesh.coord(at, "ring");
    const std::vector<Stage> own = plan.stages_on(at);
    int64_t layers = 0;
    for (const Stage& stage : own) layers += stage.layers.size();
    for (const auto& [sequences, microbatches] : microbatch_sizes(plan.share(at))) {
      const SequenceTraffic attention = sequence_traffic(plan.sequence, attention_of(plan, sequences), u, r);
      table.add(rank, attention.forward, "forward", layers * forwards * microbatches);
      table.add(rank, attention.backward, "backward", layers * microbatches);
      const TensorTraffic tensor = tensor_traffic(plan.tensor, tensor_shape_of(plan, at, sequences), plan.mesh, at);
      table.add(rank, tensor.block_forward, "blocks forward", layers * forwards * microbatches);
      table.add(rank, tensor.block_backward, "blocks backward", layers * microbatches);
      table.add(rank, tensor.ends_forward, "vocabulary forward", microbatches);
      table.add(rank, tensor.ends_backward, "vocabulary backward", microbatches);
    }
    for (const Action& action : plan.row(at)) {
      if (!is_message(action)) continue;
      const int64_t sequences = plan.sequences_of(at, action.microbatch);
      if (sequences == 0) continue;
      const bool leaves = facts(action.kind).lane == Lane::send;
      const bool forward = action.kind == ActionKind::SEND_F || action.kind == ActionKind::RECV_F;
      table.add(rank, forward ? "outputs of stages" : "gradients of stages' inputs",
                leaves ? "send" : "recv", "pipeline", 1, leaves ? plan.stream_bytes(at, sequences) : 0);
    }
  }
  for (auto& entry : table.take()) plan.communication.push_back(std::move(entry));
}

// Everything but the alternatives, which are plans themselves.
Plan plan_once(const Config& config, const RunFacts& facts) {
  Plan plan;
  plan.config = config;
  plan.facts = facts;
  plan.architecture = architecture_of(config, facts.vocab_size);
  plan.mesh = mesh_of(config, facts.ranks);
  plan.parameters = parameter_table(plan.architecture);
  plan.sequence = sequence_plan_of(config, plan.mesh);
  plan.tensor = tensor_plan_of(config, plan.mesh, plan.sequence);
  plan.gradient_axes = {"data"};
  if (plan.tensor.depth > 1) plan.gradient_axes.emplace_back(kDepth);
  if (plan.tensor.rows > 1) plan.gradient_axes.emplace_back(kRow);
  if (plan.tensor.columns > 1 && plan.tensor.stream == StreamCut::tokens) plan.gradient_axes.emplace_back(kColumn);
  if (plan.sequence.ulysses > 1) plan.gradient_axes.push_back("ulysses");
  if (plan.sequence.ring > 1) plan.gradient_axes.push_back("ring");
  const int data_ranks = plan.mesh.group_size(kBatchAxes);
  const auto& training = config.training;
  for (int coord = 0; coord < data_ranks; ++coord) {
    plan.shares.push_back(data_share(training.global_batch_size, training.local_batch_size, data_ranks, coord));
  }
  const int microbatches = num_microbatches(training.global_batch_size, training.local_batch_size, data_ranks);
  const int64_t layers = plan.architecture.num_hidden_layers;
  plan.schedule = schedule_of(config, plan.mesh.axis_size("pipeline"), microbatches, layers);
  plan.stages = stages_of(config, plan.schedule.stage_owner, layers);
  lay_out_parameters(plan);
  std::vector<int> buckets(plan.stages.size());
  for (const int stage : plan.bucket_stages) ++buckets[static_cast<size_t>(stage)];
  plan.schedule = with_reductions(plan.schedule, buckets);
  validate(plan.schedule, microbatches, buckets);
  plan.timeline = simulate(plan.schedule, Durations::of(1, 1, 1));
  plan.timeline.unit = "F";
  std::map<int, FlatLayout> flats;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    if (plan.first_like(rank) == rank) flats.emplace(rank, flat_layout(plan.parameters_of(rank)));
    plan.memory.push_back(memory_of_rank(plan, flats.at(plan.first_like(rank)), rank));
  }
  add_activations(plan);
  add_gradients(plan);
  return plan;
}

// Added to those found, unless it would be refused: then it is none.
void add_alternative(std::vector<Alternative>& found, const Config& config, const RunFacts& facts, std::string change,
                     std::string remark) {
  try {
    require_countable(config, architecture_of(config, facts.vocab_size), facts.ranks);
    const Plan plan = plan_once(config, facts);
    found.push_back(
        {std::move(change), plan.largest_memory_bytes(), plan.largest_communication_bytes(), std::move(remark)});
  } catch (const ConfigError&) {
    // Legal here, and not there.
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
    if (ranks == plan.facts.ranks || ranks % (sequence.ulysses * sequence.ring * plan.tensor.ranks()) != 0) continue;
    RunFacts facts = plan.facts;
    facts.ranks = ranks;
    Config other = config;
    other.parallelism.context_parallel_ulysses = sequence.ulysses;
    other.parallelism.context_parallel_ring = sequence.ring;
    if (config.parallelism.tensor_parallel_kind == "1d")
      other.parallelism.tensor_parallel_degree = plan.tensor.columns;
    other.parallelism.data_parallel_degree = -1;
    add_alternative(found, other, facts, fmt::format("run.ranks = {}", ranks), "");
  }
  return found;
}

}  // namespace

int dtype_bytes(const std::string& dtype) { return dtype == "bfloat16" ? 2 : dtype == "float64" ? 8 : 4; }

int master_bytes(const Config& config) { return config.training.dtype == "float64" ? 8 : 4; }

int64_t Plan::num_parameters() const { return orthant::num_parameters(architecture); }

int Plan::share_index(int rank) const { return mesh.group_index(rank, kBatchAxes); }

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
          .tokens = plan.num_places(rank),
          .hidden = a.hidden_size,
          .vocabulary = a.vocab_size,
          .qkv_rows = (attention.heads + 2 * attention.key_heads) * a.head_dim,
          .gate_up_rows = 2 * part(a.intermediate_size),
          .attention = a.num_attention_heads * a.head_dim,
          .intermediate = a.intermediate_size,
          .loss_chunk = loss_chunk_rows(shard(a.vocab_size, plan.tensor.columns, 0).size()),
          .element_bytes = attention.element_bytes,
          .sum_bytes = attention.sum_bytes()};
}

int64_t Plan::num_places(int rank) const {
  return num_held_places(sequence.placement, config.training.seq_len, sequence.ulysses, mesh.coord(rank, "ulysses"),
                         sequence.ring, mesh.coord(rank, "ring"));
}

std::vector<int64_t> Plan::places(int rank) const {
  return held_places(sequence.placement, config.training.seq_len, sequence.ulysses, mesh.coord(rank, "ulysses"),
                     sequence.ring, mesh.coord(rank, "ring"));
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

int64_t Plan::sequences_of(int rank, int microbatch) const {
  return share(rank).microbatches.at(static_cast<size_t>(microbatch)).size();
}

std::vector<int64_t> Plan::stream_shape(int rank, int64_t sequences) const {
  const int column = mesh.coord(rank, kColumn);
  const auto part = [&](int64_t extent) { return shard(extent, tensor.columns, column).size(); };
  const int64_t tokens = num_places(rank), width = architecture.hidden_size;
  return {sequences, tensor.stream == StreamCut::tokens ? part(tokens) : tokens,
          tensor.stream == StreamCut::width ? part(width) : width};
}

int64_t Plan::stream_bytes(int rank, int64_t sequences) const {
  const auto shape = stream_shape(rank, sequences);
  return shape[0] * shape[1] * shape[2] * dtype_bytes(config.training.dtype);
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

Plan make_plan(const Config& config, const RunFacts& facts) {
  require_countable(config, architecture_of(config, facts.vocab_size), facts.ranks);
  const auto plan_of = [&](const Config& other) { return plan_once(other, facts); };
  const bool choose = config.parallelism.tensor_parallel_kind == "auto";
  const int tensor_ranks = choose ? mesh_of(config, facts.ranks).axis_size(kColumn) : 1;
  Plan plan = plan_once(choose ? with_cheapest_tensor_plan(config, tensor_ranks, plan_of) : config, facts);
  plan.tensor_choices = tensor_choices(plan, plan_of);
  plan.alternatives = alternatives_to(plan);
  return plan;
}

}  // namespace orthant

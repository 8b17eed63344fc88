#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/errors.h"
#include "base/text.h"
#include "plan/from_config.h"
#include "plan/plan_limits.h"
#include "plan/plan_parameters.h"
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
  const auto activations =
      activation_bytes(plan.architecture, tokens, element, recompute, {attention.kept_bytes, attention.working_bytes});
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

// What attention sends in all layers and microbatches of a step.
void add_attention(Plan& plan) {
  const int64_t layers = plan.architecture.num_hidden_layers;
  const int64_t forwards = plan.config.activation_checkpoint.mode == "full" ? 2 : 1;
  const auto ranks = static_cast<size_t>(plan.mesh.size());
  std::vector<CommunicationEntry> entries;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const int at = static_cast<int>(rank), u = plan.mesh.coord(at, "ulysses"), r = plan.mesh.coord(at, "ring");
    for (const auto& [sequences, microbatches] : microbatch_sizes(plan.share(at))) {
      const SequenceTraffic traffic = sequence_traffic(plan.sequence, attention_of(plan, sequences), u, r);
      size_t entry = 0;
      const auto add = [&](const std::vector<SequenceMessages>& messages, const char* when, int64_t times) {
        for (const SequenceMessages& m : messages) {
          if (entry == entries.size()) {
            entries.push_back({m.what + ", " + when, m.collective, m.axis, 0, std::vector<int64_t>(ranks)});
          }
          if (rank == 0) entries[entry].calls += m.calls * times;
          entries[entry++].bytes_per_rank[rank] += m.bytes * times;
        }
      };
      add(traffic.forward, "forward", layers * forwards * microbatches);
      add(traffic.backward, "backward", layers * microbatches);
    }
  }
  plan.communication.insert(plan.communication.end(), entries.begin(), entries.end());
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
  plan.gradient_axes = {"data"};
  if (plan.sequence.ulysses > 1) plan.gradient_axes.push_back("ulysses");
  if (plan.sequence.ring > 1) plan.gradient_axes.push_back("ring");
  const int data_ranks = plan.mesh.axis_size("data");
  lay_out_parameters(plan);

  const auto& training = config.training;
  for (int coord = 0; coord < data_ranks; ++coord) {
    plan.shares.push_back(data_share(training.global_batch_size, training.local_batch_size, data_ranks, coord));
  }
  const int microbatches = num_microbatches(training.global_batch_size, training.local_batch_size, data_ranks);
  plan.schedule = one_stage(microbatches, static_cast<int>(plan.buckets.size()));
  validate(plan.schedule, microbatches, {static_cast<int>(plan.buckets.size())});
  plan.timeline = simulate(plan.schedule, Durations::of(1, 1, 1));
  plan.timeline.unit = "F";
  std::map<int, FlatLayout> flats;
  for (int rank = 0; rank < plan.mesh.size(); ++rank) {
    if (plan.first_like(rank) == rank) flats.emplace(rank, flat_layout(plan.parameters_of(rank)));
    plan.memory.push_back(memory_of_rank(plan, flats.at(plan.first_like(rank)), rank));
  }
  add_attention(plan);
  add_gradients(plan);
  return plan;
}

// Added to those found, unless it would be refused: then it is none.
void add_alternative(std::vector<Alternative>& found, const Config& config, const RunFacts& facts, std::string change,
                     std::string remark) {
  try {
    require_countable(config, architecture_of(config, facts.vocab_size), facts.ranks);
  } catch (const ConfigError&) {
    return;
  }
  const Plan plan = plan_once(config, facts);
  found.push_back(
      {std::move(change), plan.largest_memory_bytes(), plan.largest_communication_bytes(), std::move(remark)});
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
    if (ranks == plan.facts.ranks || ranks % (sequence.ulysses * sequence.ring) != 0) continue;
    RunFacts facts = plan.facts;
    facts.ranks = ranks;
    Config other = config;
    other.parallelism.context_parallel_ulysses = sequence.ulysses;
    other.parallelism.context_parallel_ring = sequence.ring;
    other.parallelism.data_parallel_degree = -1;
    add_alternative(found, other, facts, fmt::format("run.ranks = {}", ranks), "");
  }
  return found;
}

}  // namespace

int dtype_bytes(const std::string& dtype) { return dtype == "bfloat16" ? 2 : dtype == "float64" ? 8 : 4; }

int master_bytes(const Config& config) { return config.training.dtype == "float64" ? 8 : 4; }

int64_t Plan::num_parameters() const { return orthant::num_parameters(architecture); }

const DataShare& Plan::share(int rank) const { return shares[static_cast<size_t>(mesh.coord(rank, "data"))]; }

SequenceAttention attention_of(const Plan& plan, int64_t sequences) {
  return attention_of(plan.config, plan.architecture, sequences);
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
  return schedule.rows[static_cast<size_t>(mesh.coord(rank, "pipeline"))];
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
  Plan plan = plan_once(config, facts);
  plan.alternatives = alternatives_to(plan);
  return plan;
}

}  // namespace orthant

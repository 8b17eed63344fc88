// Makes a Plan: its first three steps are functions of their own; the last adds the costs.
#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "config/parallelism_check.h"
#include "plan/plan_limits.h"
#include "plan/plan_memory.h"
#include "plan/plan_traffic.h"
#include "plan/rank_values.h"
#include "plan/vocabulary.h"
#include "schedule/steps.h"

namespace orthant {

namespace {

// Joins classes whose ranks have the same row of the schedule and the same costs, although their values differ.
void join_equal_classes(Plan& plan, const std::vector<RankValues>& ranks) {
  std::map<std::vector<int64_t>, int> known;
  std::vector<int> joined;       // by class
  std::vector<size_t> distinct;  // classes that stay
  for (size_t at = 0; at < ranks.size(); ++at) {
    const MemoryBytes& m = plan.memory[at];
    const Action peak = m.peak.value_or(Action());
    std::vector<int64_t> costs = {ranks[at].pipeline_rank, ranks[at].data_shard.sequences.size(),
                                  m.parameters, m.gradients, m.optimizer, m.activations, m.working, m.host,
                                  m.host_copies, m.peak.has_value(), static_cast<int64_t>(peak.kind), peak.stage,
                                  peak.microbatch, m.at_peak.activations, m.at_peak.messages, m.at_peak.partial_sums,
                                  m.at_peak.units, m.at_peak.temporaries};
    for (const CommunicationEntry& entry : plan.communication) {
      costs.push_back(entry.calls[at]);
      costs.push_back(entry.bytes[at]);
      costs.push_back(entry.received[at]);
    }
    const auto [found, is_new] = known.try_emplace(std::move(costs), static_cast<int>(distinct.size()));
    joined.push_back(found->second);
    if (is_new) distinct.push_back(at);
  }
  plan.classes = plan.classes.joined(joined);
  const auto keep = [&](auto& values) {
    for (size_t i = 0; i < distinct.size(); ++i) values[i] = values[distinct[i]];
    values.resize(distinct.size());
  };
  keep(plan.memory);
  for (CommunicationEntry& entry : plan.communication) keep(entry.calls), keep(entry.bytes), keep(entry.received);
}

// Simulates the step of a plan that has its placement.
void add_times(Plan& plan, const ParameterShards& held) {
  const bool in_seconds = plan.facts.hardware != nullptr;
  const Durations durations = in_seconds ? action_seconds(plan, held) : estimate_durations(plan, plan.stages);
  plan.timeline = simulate(plan.schedule, durations);
  if (!in_seconds) plan.timeline.unit = "mean forwards of a rank";
  plan.row_interval = plan.post_validates() ? step_interval(plan.schedule, durations) : plan.timeline.makespan;
  if (in_seconds) plan.step_time = count_step_time(plan, held, plan.timeline, plan.row_interval);
}

}  // namespace

Plan make_plan(const Config& config, const RunFacts& facts) { return *make_plan_below(config, facts, INFINITY); }

std::optional<Plan> make_plan_below(const Config& config, const RunFacts& facts, double seconds) {
  std::optional<Plan> result(Plan{place_parameters(make_pipeline(make_sharding(config, facts)))});
  Plan& plan = *result;
  const ParameterShards held(plan);
  add_times(plan, held);
  if (plan.step_time && plan.step_time->seconds >= seconds) return std::nullopt;
  const RankTable ranks(plan, held);
  plan.classes = ranks.classes();
  plan.memory = count_memory(plan, ranks.values());
  plan.communication = count_communication(plan, ranks.values());
  join_equal_classes(plan, ranks.values());
  return result;
}

StepTime plan_step_time(const Config& config, const RunFacts& facts) {
  Plan plan{place_parameters(make_pipeline(make_sharding(config, facts)))};
  add_times(plan, ParameterShards(plan));
  return *plan.step_time;
}

void check_plan(const Config& config, const RunFacts& facts) {
  require_countable(config, make_architecture(config, facts.vocab_size), facts.ranks);
  check_mesh(config, facts.ranks);
  const Mesh mesh = make_mesh(config, facts.ranks);
  const Config effective = without_idle_settings(config, mesh);
  vocabulary_order_of(effective);
  if (config.parallelism.pipeline_parallel_schedule.ends_with(".csv")) {
    make_pipeline(make_sharding(config, facts));
  } else {
    check_pipeline(effective, mesh);
  }
}

Plan make_generation_plan(Plan plan) {
  plan.sequence = {};
  if (plan.tensor.stream == StreamSharding::tokens) plan.tensor.stream = StreamSharding::none;
  return plan;
}

double Plan::bubble() const {
  const double busy = std::accumulate(timeline.busy.begin(), timeline.busy.end(), 0.0);
  const double all = row_interval * static_cast<double>(timeline.busy.size());
  return all > 0 ? (all - busy) / all : 0;
}

int Plan::worst_rank() const {
  const auto worst = std::ranges::max_element(memory, {}, &MemoryBytes::total);
  return classes.first_rank(static_cast<int>(worst - memory.begin()));
}

int64_t Plan::largest_memory_bytes() const { return std::ranges::max(memory, {}, &MemoryBytes::total).total(); }

int64_t Plan::calls_of(const CommunicationEntry& entry, int rank) const {
  return entry.calls[static_cast<size_t>(classes.of(rank))];
}

int64_t Plan::bytes_of(const CommunicationEntry& entry, int rank) const {
  return entry.bytes[static_cast<size_t>(classes.of(rank))];
}

int64_t Plan::received_by(const CommunicationEntry& entry, int rank) const {
  return entry.received[static_cast<size_t>(classes.of(rank))];
}

std::vector<int64_t> Plan::received_bytes() const {
  std::vector<int64_t> sums(memory.size());
  for (const CommunicationEntry& entry : communication) {
    for (size_t at = 0; at < sums.size(); ++at) sums[at] += entry.received[at];
  }
  return sums;
}

std::vector<int64_t> Plan::communication_bytes(std::initializer_list<CommunicationKind> kinds) const {
  std::vector<int64_t> sums(memory.size());
  for (const CommunicationEntry& entry : communication) {
    if (kinds.size() > 0 && std::ranges::find(kinds, entry.kind) == kinds.end()) continue;
    for (size_t at = 0; at < sums.size(); ++at) sums[at] += entry.bytes[at];
  }
  return sums;
}

int64_t Plan::largest_communication_bytes(std::initializer_list<CommunicationKind> kinds) const {
  return std::ranges::max(communication_bytes(kinds));
}

}  // namespace orthant

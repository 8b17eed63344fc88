// Makes a Plan: its first three steps are functions of their own; the last adds the costs.
#include "plan/plan.h"

#include <algorithm>
#include <numeric>

#include "config/parallelism_check.h"
#include "plan/plan_limits.h"
#include "plan/plan_memory.h"
#include "plan/plan_traffic.h"
#include "plan/vocabulary.h"
#include "schedule/steps.h"

namespace orthant {

Plan make_plan(const Config& config, const RunFacts& facts) {
  Plan plan{place_parameters(make_pipeline(make_sharding(config, facts)))};
  const ParameterShards held(plan);
  const Durations durations = facts.hardware ? action_seconds(plan, held) : estimate_durations(plan, plan.stages);
  plan.timeline = simulate(plan.schedule, durations);
  if (!facts.hardware) plan.timeline.unit = "mean forwards of a rank";
  plan.row_interval = plan.post_validates() ? step_interval(plan.schedule, durations) : plan.timeline.makespan;
  if (facts.hardware) plan.step_time = count_step_time(plan, held, plan.timeline, plan.row_interval);
  const MatrixCostsByRank updates(plan, held);
  plan.memory = count_memory(plan, held, updates);
  plan.communication = count_communication(plan, held, updates);
  return plan;
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
  return static_cast<int>(std::ranges::max_element(memory, {}, &MemoryBytes::total) - memory.begin());
}

int64_t Plan::largest_memory_bytes() const { return memory[static_cast<size_t>(worst_rank())].total(); }

int64_t Plan::largest_communication_bytes() const {
  std::vector<int64_t> sums(memory.size());
  for (const auto& entry : communication) {
    for (size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += entry.bytes_per_rank[rank];
  }
  return *std::max_element(sums.begin(), sums.end());
}

}  // namespace orthant

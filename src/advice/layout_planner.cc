#include "advice/layout_planner.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "advice/fit.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "config/table.h"

namespace orthant {
namespace {

void check(const Config& config) { check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}}); }

// Layouts with copies of sharded states are tried with the most copies for which states take this part of the memory.
constexpr double kStateFraction = 1.0 / 6;

// Whether a bound shows that the step takes limit_s seconds or more.
bool is_too_slow(LayoutBounds& bounds, const Config& config, double limit_s) {
  try {
    return limit_s < INFINITY && bounds.step_seconds(config) >= limit_s;
  } catch (const ConfigError&) {
    return false;  // plan() finds the law that it breaks
  }
}

// The config whose passes all these stages of ZeRO have.
Config with_passes_of(const std::vector<Config>& states, Config config) {
  if (std::ranges::all_of(states, has_gradients_by_unit)) set_zero(config.parallelism, 2);
  return config;
}

}  // namespace

Planned LayoutPlanner::plan(const Candidate& candidate, double limit_s) const {
  try {
    check(candidate.config);
    const std::optional<Plan> plan = make_plan_below(candidate.config, facts_, limit_s);
    if (!plan) return {Planned::too_slow, {}};
    FoundLayout found = layout_of(*plan);
    found.kind = candidate.kind;
    const bool fits = fit_of(*plan).fits();
    return {fits ? Planned::fits : Planned::too_large, std::move(found)};
  } catch (const ConfigError&) {
    return {Planned::refused, {}};
  }
}

std::vector<Planned> LayoutPlanner::plan_all(const MeshChoice& mesh, double limit_s) const {
  const Config config = with_mesh(base_, mesh);
  const bool is_given = base_.is_set("parallelism.pipeline_parallel_schedule");
  if (mesh.pipeline == 1 || is_given) return plan_schedule(mesh, config, limit_s);
  std::vector<Planned> all;
  for (const auto& [schedule, stages] : {std::pair("1f1b", 1), {"interleaved_1f1b", 2}, {"zb_v", 2}}) {
    if (!variants_.has_layers_for(stages, mesh.pipeline)) continue;
    Config other = config;
    other.parallelism.pipeline_parallel_schedule = schedule;
    std::ranges::move(plan_schedule(mesh, other, limit_s), std::back_inserter(all));
  }
  return all;
}

std::vector<Planned> LayoutPlanner::plan_schedule(const MeshChoice& mesh, const Config& config, double limit_s) const {
  std::vector<Planned> all;
  std::vector<Config> states = states_of(mesh, config);
  std::erase_if(states, [&](const Config& state) { return least_state_bytes(state) > memory_limit(); });
  for (const auto& level : variants_.recomputations()) {
    std::vector<bool> is_done(states.size());  // it fits, or is too slow, also with more recomputation
    for (const ActivationCheckpointConfig& setting : level) {
      if (states.empty()) return all;
      auto bounds = bounds_of(with_passes_of(states, config), setting);
      if (!bounds) {
        all.emplace_back();
        return all;
      }
      for (size_t i = 0; i < states.size(); ++i) {
        if (bounds->memory_bytes(states[i], memory_limit()) > memory_limit()) continue;
        if (is_too_slow(*bounds, states[i], limit_s)) {
          is_done[i] = true;
          continue;
        }
        states[i].activation_checkpoint = setting;
        if (bytes_with_few_microbatches(states[i]) > memory_limit()) continue;
        all.push_back(plan({mesh.kind(), states[i]}, limit_s));
        if (all.back().outcome != Planned::too_large) is_done[i] = true;
      }
    }
    std::vector<Config> open;
    for (size_t i = 0; i < states.size(); ++i) {
      if (!is_done[i]) open.push_back(std::move(states[i]));
    }
    states = std::move(open);
  }
  return all;
}

std::vector<Config> LayoutPlanner::states_of(const MeshChoice& mesh, const Config& config) const {
  return variants_.states(mesh, config, [&](const Config& other) {
    return static_cast<double>(least_state_bytes(other)) <= kStateFraction * static_cast<double>(memory_limit());
  });
}

int64_t LayoutPlanner::memory_limit() const {
  const double given = base_.run.memory_gib_per_rank * 0x1p30, device = facts_.hardware->device.memory_bytes;
  return static_cast<int64_t>(given == 0 ? device : std::min(given, device));
}

int64_t LayoutPlanner::least_state_bytes(const Config& config) const {
  try {
    return state_bytes_bound(config, facts_, parameters_);
  } catch (const ConfigError&) {
    return 0;  // plan() finds the law that it breaks
  }
}

int64_t LayoutPlanner::bytes_with_few_microbatches(const Config& config) const {
  try {
    const Config few = with_few_microbatches(config, facts_);
    if (4 * few.training.global_batch_size > config.training.global_batch_size) return 0;  // a plan costs little more
    check(few);
    return make_plan(few, facts_).largest_memory_bytes();
  } catch (const ConfigError&) {
    return 0;  // plan() finds the law that it breaks
  }
}

std::optional<LayoutBounds> LayoutPlanner::bounds_of(Config config,
                                                     const ActivationCheckpointConfig& recomputation) const {
  config.activation_checkpoint = recomputation;
  try {
    return LayoutBounds(config, facts_, parameters_);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

FoundLayout LayoutPlanner::layout_of(const Plan& plan) const {
  FoundLayout found{.config = plan.config,
                    .name = plan.mesh_text() + plan.zero_text(),
                    .kind = {},
                    .time = *plan.step_time,
                    .mfu = model_flops_utilization(plan, plan.step_time->seconds, true),
                    .mfu_causal = model_flops_utilization(plan, plan.step_time->seconds, false),
                    .memory_bytes = plan.largest_memory_bytes(),
                    .fits_device = plan.largest_memory_bytes() <= *most_tensor_bytes_of_device(plan)};
  const bool is_1d = plan.tensor.columns > 1 && plan.tensor.stream != StreamSharding::width;
  if (is_1d && !plan.config.parallelism.tensor_parallel_sequence) found.name += "; no sequence parallelism";
  const std::string& placement = plan.config.parallelism.context_parallel_placement;
  if (placement != ParallelismConfig().context_parallel_placement) found.name += "; placement " + placement;
  if (plan.schedule.rows.size() > 1) found.name += "; " + schedule_text(plan.config);
  if (const std::string text = recomputation_text(plan.config); !text.empty()) found.name += "; " + text;
  Config base = base_;
  for (const std::string& name : searched_keys()) {
    const Key& key = *find_key(name);
    if (value_text(key, found.config) != value_text(key, base)) found.config.origins[name] = kChosenByAuto;
  }
  return found;
}

}  // namespace orthant

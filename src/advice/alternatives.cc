// Plans the run again with one setting changed.
#include "advice/alternatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/text.h"
#include "config/table.h"

namespace orthant {
namespace {

// Plans the changed run and appends it to `found`, unless planning refuses it.
void add_alternative(std::vector<Alternative>& found, const Config& config, const RunFacts& facts, std::string change,
                     std::string remark) {
  try {
    const Plan plan = make_plan(config, facts);
    found.push_back(
        {std::move(change), plan.largest_memory_bytes(), plan.largest_communication_bytes(), std::move(remark)});
  } catch (const ConfigError&) {
    // The run is legal, but not with this change.
  }
}

// Names the settings in which the run on other ranks differs, as in "run.ranks = 2 with KEY = VALUE".
std::string change_of_ranks(const Config& before, const Config& after, int ranks) {
  std::vector<std::string> settings;
  Config one = before, other = after;
  for (const Key& key : config_table()) {
    const std::string value = value_text(key, other);
    if (value != value_text(key, one)) settings.push_back(fmt::format("{} = {}", key.full_name(), value));
  }
  return fmt::format("run.ranks = {}{}{}", ranks, settings.empty() ? "" : " with ", join(settings, " and "));
}

}  // namespace

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
  const bool has_replicas =
      std::ranges::any_of(plan.buckets, [&](const GradientBucket& b) { return plan.mesh.group_size(b.axes) > 1; });
  if (has_replicas || plan.shards_optimizer()) {
    const int64_t stage = plan.shards_optimizer() ? 0 : 1;
    add_alternative(found, with([&](Config& c) { c.parallelism.zero_stage = stage; }), plan.facts,
                    fmt::format("parallelism.zero_stage = {}", stage),
                    stage == 1 ? "weights are gathered after the step" : "every replica keeps all of the state");
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
    add_alternative(found, other, facts, change_of_ranks(config, other, ranks), "");
  }
  return found;
}

}  // namespace orthant

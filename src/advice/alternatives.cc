// Plans the run again with other settings.
#include "advice/alternatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"
#include "config/from_config.h"
#include "config/table.h"

namespace orthant {
namespace {

// Plans the changed run. Returns nothing if planning refuses it, or if the step takes limit_s seconds or more. `change`
// begins the text of the change.
std::optional<Alternative> plan_other(const Plan& from, const Config& config, const RunFacts& facts, std::string remark,
                                      const std::string& change = "", double limit_s = INFINITY) {
  try {
    check_config(config, {.only_plans = true, .nccl = true, .no_ucx = {}});
    const std::optional<Plan> planned = make_plan_below(config, facts, limit_s);
    if (!planned) return {};
    const Plan& plan = *planned;
    std::string text = change;
    if (const std::string settings = changed_settings(from.given, config); !settings.empty()) {
      text += (text.empty() ? "" : " ") + settings;
    }
    Alternative other = alternative(std::move(text), plan);
    other.remark = std::move(remark);
    return other;
  } catch (const ConfigError&) {
    return {};  // the run is legal, but not with this change
  }
}

// Number of replicas of the model if `moved` times as many ranks share one.
int num_replicas(const Plan& plan, int moved) {
  return plan.mesh.size() / (plan.tensor.ranks() * plan.mesh.axis_size(kPipeline) * moved);
}

// Returns the configuration in which `tensor` x `pipeline` times as many ranks share a replica of the model, and fewer
// data ranks remain by the same factor. Returns nothing if the data ranks cannot be divided so.
std::optional<Config> with_fewer_data_ranks(const Plan& plan, int tensor, int pipeline) {
  if (data_ranks(plan.mesh) % (tensor * pipeline) != 0) return {};
  Config other = plan.given;
  auto& p = other.parallelism;
  if (tensor > 1 && p.tensor_parallel_kind != "1d") return {};
  if (pipeline > 1) p.pipeline_parallel_layers = {};
  if (p.tensor_parallel_kind == "1d") p.tensor_parallel_degree = plan.tensor.columns * tensor;
  p.context_parallel_ulysses = plan.sequence.ulysses;
  p.context_parallel_ring = plan.sequence.ring;
  p.pipeline_parallel_degree = plan.mesh.axis_size(kPipeline) * pipeline;
  p.data_parallel_degree = -1;
  if (num_replicas(plan, tensor * pipeline) == 1) set_zero(p, 0);
  return other;
}

}  // namespace

int64_t largest_microbatch(const Plan& plan) {
  int64_t largest = 0;
  for (const DataShard& shard : plan.data_shards) {
    for (const Range& microbatch : shard.microbatches) largest = std::max(largest, microbatch.size());
  }
  return largest;
}

Alternative alternative(std::string change, const Plan& plan) {
  Alternative other;
  set_costs(other, plan);
  other.change = std::move(change);
  other.offloads = offloads(plan.config);
  return other;
}

std::string alternatives_table(const Plan& plan, const std::string& heading,
                               const std::vector<Alternative>& alternatives) {
  std::vector<std::vector<std::string>> rows = {{heading, "step", "memory of a rank", "sent by a rank", ""}};
  for (const Alternative& other : alternatives) {
    std::vector<std::string> remarks = {other.fits ? "" : "does not fit", other.remark};
    std::erase(remarks, "");
    rows.push_back({other.change, precise_seconds(other.step_seconds),
                    format_bytes(static_cast<double>(other.memory_bytes)),
                    format_bytes(static_cast<double>(other.sent_bytes)), join(remarks, ", ")});
  }
  if (!plan.step_time) {
    for (auto& row : rows) row.erase(row.begin() + 1);
  }
  return text_table(rows);
}

std::string changed_settings(const Config& before, const Config& after) {
  std::vector<std::string> settings;
  Config one = before, other = after;
  for (const Key& key : config_table()) {
    if (value_text(key, other) != value_text(key, one)) settings.push_back(setting_word(key, other));
  }
  return shell_quoted(settings);
}

std::optional<Alternative> plan_change(const Plan& plan, const Config& config, double limit_s) {
  return plan_other(plan, config, plan.facts, "", "", limit_s);
}

std::vector<Alternative> alternatives_to(const Plan& plan) {
  std::vector<Alternative> found;
  const auto costs = [](const Alternative& one) {
    return std::tuple(one.memory_bytes, one.sent_bytes, one.step_seconds);
  };
  const auto add_planned = [&, own = costs(alternative("", plan))](Alternative other) {
    if (costs(other) != own) found.push_back(std::move(other));
  };
  const auto& config = plan.given;  // a changed degree may give its other settings an effect
  const auto add = [&](const auto& change, const char* remark) {
    Config other = config;
    change(other);
    if (auto planned = plan_other(plan, other, plan.facts, remark)) add_planned(std::move(*planned));
  };
  // recomputation_choices() compares the other settings.
  const auto add_recomputation = [&](const std::string& mode, const char* remark) {
    if (config.activation_checkpoint.mode == mode) return;
    const bool offload = config.activation_checkpoint.offload;
    add([&](Config& c) { c.activation_checkpoint = {.mode = mode, .offload = offload}; }, remark);
  };
  add_recomputation("none", "no block recomputes");
  add_recomputation("full", "every block runs forward again in backward");
  if (const int64_t largest = largest_microbatch(plan); largest > 1) {
    add([&](Config& c) { c.training.local_batch_size = largest / 2; }, "more and smaller products");
  }
  if (config.training.dtype != "bfloat16") {
    add([](Config& c) { c.training.dtype = "bfloat16"; }, "float32 masters and gradients stay");
  }
  if (plan.shards_optimizer()) {
    add([](Config& c) { set_zero(c.parallelism, 0); }, "every replica keeps all of the state");
  } else if (has_replicas(plan)) {
    add([](Config& c) { set_zero(c.parallelism, 1); }, "weights are gathered after the step");
  }
  if (plan.shards_weights() && plan.reshard() != Reshard::microbatch) {
    add([](Config& c) { set_zero(c.parallelism, 3, Reshard::microbatch); },
        "gathers weights for each forward and backward");
  }
  if (config.run.device == "cuda") {
    if (!config.activation_checkpoint.offload) {
      add([](Config& c) { c.activation_checkpoint.offload = true; },
          "copies activations to the host and back; the step does not count these copies");
    }
    if (!config.optimizer.offload) {
      add([](Config& c) { c.optimizer.offload = true; },
          "copies optimizer state to the host and back; the step does not count these copies");
    }
  }
  if (plan.mesh.axis_size(kPipeline) > 1 && plan.vocabulary.empty()) {
    add([](Config& c) { c.parallelism.vocabulary_parallel = "algorithm_2"; },
        "embedding and output layer on all pipeline ranks");
  }
  const auto add_mesh = [&](int tensor, int pipeline, const char* remark) {
    if (const auto other = with_fewer_data_ranks(plan, tensor, pipeline)) add([&](Config& c) { c = *other; }, remark);
  };
  add_mesh(2, 1, "shards each layer over more ranks");
  add_mesh(1, 2, "shards the layers over more ranks");
  // A profile whose ranks share the host's cores is that of this number of ranks.
  if (plan.facts.hardware && plan.facts.hardware->device.shared_cores > 0) return found;
  const SequencePlan& sequence = plan.sequence;
  for (const int ranks : {1, 2, 4, 8}) {
    const int pipeline = plan.mesh.axis_size(kPipeline);
    const int others = sequence.ulysses * sequence.ring * plan.tensor.ranks() * pipeline;
    if (ranks == plan.facts.ranks || ranks % others != 0) continue;
    const int shards_of_batch = ranks / others * plan.tensor.rows * plan.tensor.depth;
    if (shards_of_batch > config.training.global_batch_size) continue;  // some ranks would get no sequence
    RunFacts facts = plan.facts;
    facts.ranks = ranks;
    Config other = config;
    other.parallelism.context_parallel_ulysses = sequence.ulysses;
    other.parallelism.context_parallel_ring = sequence.ring;
    if (config.parallelism.tensor_parallel_kind == "1d")
      other.parallelism.tensor_parallel_degree = plan.tensor.columns;
    other.parallelism.pipeline_parallel_degree = pipeline;
    other.parallelism.data_parallel_degree = -1;
    if (auto planned = plan_other(plan, other, facts, "", fmt::format("run.ranks={}", ranks))) {
      planned->on_other_ranks = true;
      add_planned(std::move(*planned));
    }
  }
  return found;
}

namespace {

Config with_full_recomputation(Config config) {
  config.activation_checkpoint = {.mode = "full", .offload = config.activation_checkpoint.offload};
  return config;
}

// The run as it is, and with the stages of ZeRO, from the fewest messages to the least memory.
std::vector<Config> with_stages(const Config& config, bool has_replicas) {
  std::vector<Config> all = {config};
  if (!has_replicas) return all;
  for (const int64_t stage : {1, 2, 3}) set_zero(all.emplace_back(config).parallelism, stage, Reshard::microbatch);
  return all;
}

// Returns the fastest of these runs that fits, or without hardware the first.
std::optional<Alternative> best_of(const Plan& plan, const std::vector<Config>& runs) {
  std::optional<Alternative> best;
  for (const Config& run : runs) {
    std::optional<Alternative> other = plan_change(plan, run, best ? best->step_seconds : INFINITY);
    if (!other || !other->fits) continue;
    best = std::move(other);
    if (!plan.step_time) break;
  }
  return best;
}

}  // namespace

std::optional<Alternative> combined_change(const Plan& plan, std::optional<Alternative>* least) {
  constexpr int kMostMoved = 64, kMostColumns = 8;  // columns beyond those of a host are slow
  const int data = data_ranks(plan.mesh);
  for (int moved = 1; moved <= std::min(data, kMostMoved); moved *= 2) {
    for (int tensor = moved; tensor >= 1; tensor /= 2) {
      if (tensor > 1 && plan.tensor.columns * tensor > kMostColumns) continue;
      std::optional<Config> other = with_fewer_data_ranks(plan, tensor, moved / tensor);
      if (!other) continue;
      if (other->parallelism.pipeline_parallel_degree > 1 && !shards_vocabulary(*other)) {
        other->parallelism.vocabulary_parallel = "algorithm_2";
        other->parallelism.pipeline_parallel_post_validation = false;
      }
      std::vector<Config> runs = with_stages(*other, num_replicas(plan, moved) > 1);
      const std::optional<Alternative> smallest = plan_change(plan, with_full_recomputation(runs.back()));
      if (!smallest) continue;
      if (least != nullptr && (!*least || smallest->memory_bytes < (*least)->memory_bytes)) *least = smallest;
      if (!smallest->fits) continue;
      for (size_t i = 0, stages = runs.size(); i < stages; ++i) runs.push_back(with_full_recomputation(runs[i]));
      return best_of(plan, runs);
    }
  }
  return {};
}

}  // namespace orthant

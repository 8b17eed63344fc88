#include "advice/zero_choices.h"

#include <algorithm>

#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"

namespace orthant {
namespace {

void fill_costs(ZeroChoice& choice, const Plan& plan) {
  for (const MemoryBytes& m : plan.memory) {
    choice.state_bytes = std::max(choice.state_bytes, m.parameters + m.gradients + m.optimizer);
  }
  set_costs(choice, plan);
  using enum CommunicationKind;
  choice.parameter_bytes_sent = plan.largest_communication_bytes({gradients, gradients_of_copies, weights});
}

std::string description(const ZeroChoice& choice) {
  if (choice.stage == 0) return "every replica keeps all state";
  if (choice.stage == 1) return "shards optimizer state";
  if (choice.stage == 2) return "shards gradients too, reduces each microbatch";
  if (choice.reshard == Reshard::step) return "shards weights too, gathers and reduces once a step";
  if (choice.reshard == Reshard::never) return "gathers weights once a microbatch";
  return "gathers weights for each forward and backward";
}

}  // namespace

bool has_replicas(const Plan& plan) {
  return plan.mesh.has(kReplica) || std::ranges::any_of(plan.buckets, [&](const GradientBucket& bucket) {
           return plan.mesh.group_size(bucket.axes) > 1;
         });
}

void set_zero(ParallelismConfig& parallelism, int64_t stage, Reshard reshard) {
  parallelism.zero_stage = stage;
  parallelism.zero_reshard = name_of(stage == 3 ? reshard : Reshard::step);
  if (stage == 0) parallelism.data_parallel_shard_degree = parallelism.data_parallel_replicate_degree = 0;
}

std::vector<ZeroChoice> zero_choices(const Plan& plan) {
  if (!has_replicas(plan)) return {};
  std::vector<ZeroChoice> choices;
  const auto add = [&](int64_t stage, std::optional<Reshard> reshard) {
    ZeroChoice& choice = choices.emplace_back();
    choice.stage = stage, choice.reshard = reshard;
  };
  for (const int64_t stage : {0, 1, 2}) add(stage, {});
  using enum Reshard;
  for (const Reshard reshard : {step, never, microbatch}) add(3, reshard);
  for (ZeroChoice& choice : choices) {
    Config other = plan.config;
    auto& p = other.parallelism;
    set_zero(p, choice.stage, choice.reshard.value_or(step));
    choice.chosen =
        p.zero_stage == plan.config.parallelism.zero_stage && p.zero_reshard == plan.config.parallelism.zero_reshard;
    try {
      fill_costs(choice, choice.chosen ? plan : make_plan(other, plan.facts));
    } catch (const ConfigError& error) {
      choice.refusal = error.what();
    }
  }
  return choices;
}

std::string explain_zero_choices(const Plan& plan) {
  const std::vector<ZeroChoice> choices = zero_choices(plan);
  if (choices.empty()) return "";
  std::vector<std::vector<std::string>> rows = {
      {"zero_stage", "zero_reshard", "step", "states kept", "peak memory", "parameters sent", ""}};
  const auto bytes = [](int64_t count) { return format_bytes(static_cast<double>(count)); };
  for (const ZeroChoice& choice : choices) {
    const bool is_legal = choice.is_legal();
    std::string remark = is_legal ? description(choice) : "refused: " + choice.refusal;
    if (choice.chosen) remark = "as planned: " + remark;
    if (is_legal && !choice.fits) remark += "; does not fit";
    rows.push_back({fmt::format("{}", choice.stage), choice.reshard ? choice.reshard_name() : "-",
                    is_legal ? precise_seconds(choice.step_seconds) : "", is_legal ? bytes(choice.state_bytes) : "",
                    is_legal ? bytes(choice.memory_bytes) : "", is_legal ? bytes(choice.parameter_bytes_sent) : "",
                    remark});
  }
  if (!plan.step_time) {
    for (auto& row : rows) row.erase(row.begin() + 2);
  }
  return text_table(rows);
}

}  // namespace orthant

#include "advice/recomputation_choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "advice/fit.h"
#include "base/errors.h"
#include "base/text.h"
#include "base/text_table.h"

namespace orthant {
namespace {

// True if both settings recompute the same operations of the same blocks.
bool same(const Plan& plan, const ActivationCheckpointConfig& a, const ActivationCheckpointConfig& b) {
  const std::vector<Operation> block = block_operations(plan.architecture);
  const auto recomputation = [&](const ActivationCheckpointConfig& setting) {
    Config config = plan.config;
    config.activation_checkpoint = setting;
    const Recomputation made = make_recomputation(config);
    return std::pair(made.ranges(block), made.layers);
  };
  return recomputation(a) == recomputation(b);
}

std::string name_of(const ActivationCheckpointConfig& setting) {
  const std::string name = setting.mode == "selective" ? join(setting.operations, " + ") : setting.mode;
  return setting.layers == 1 ? name : fmt::format("{}, every {} blocks", name, setting.layers);
}

// Returns the FLOPs per token of a run's layers, head included.
double flops_of(const Plan& plan, const Config& config) {
  double flops = 0;
  for (const StageFlops& stage : count_stage_flops(config, plan.architecture, plan.stages)) flops += stage.sum();
  return flops;
}

// Returns all sets of operations in every block, none and the full block among them, and the plan's own setting.
std::vector<ActivationCheckpointConfig> settings_of(const Plan& plan) {
  std::vector<ActivationCheckpointConfig> settings;
  for (const char* mlp : {"", "swiglu", "mlp"}) {
    for (const char* attention : {"", "attention"}) {
      for (const char* norms : {"", "norms"}) {
        std::vector<std::string> operations = {norms, attention, mlp};
        std::erase(operations, "");
        const char* mode = operations.empty() ? "none" : "selective";
        settings.push_back({.mode = mode, .operations = std::move(operations)});
      }
    }
  }
  settings.push_back({.mode = "full"});
  const ActivationCheckpointConfig& own = plan.config.activation_checkpoint;
  const auto is_own = [&](const auto& setting) { return same(plan, setting, own); };
  if (std::ranges::none_of(settings, is_own)) settings.push_back(own);
  for (auto& setting : settings) setting.offload = own.offload;
  return settings;
}

RecomputationChoice choice_of(const Plan& plan, const ActivationCheckpointConfig& setting) {
  RecomputationChoice choice;
  choice.setting = setting, choice.name = name_of(setting);
  choice.chosen = same(plan, setting, plan.config.activation_checkpoint);
  Config other = plan.config, none = plan.config;
  other.activation_checkpoint = setting;
  none.activation_checkpoint = {};
  choice.extra_flops = flops_of(plan, other) / flops_of(plan, none) - 1;
  const std::vector<Operation> block = block_operations(plan.architecture);
  const Recomputation recompute = make_recomputation(other);
  choice.repeated_operations =
      std::ssize(recompute.repeated(block)) * recompute.num_layers(0, plan.architecture.num_hidden_layers);
  try {
    set_costs(choice, choice.chosen ? plan : make_plan(other, plan.facts));
  } catch (const ConfigError& error) {
    choice.refusal = error.what();
  }
  return choice;
}

// Returns the setting that recomputes the same operations in as few blocks as fit the memory limit, by bisection over
// the numbers of blocks that "every n-th block" can have. Requires that all blocks fit. Returns nothing if that is the
// only number that fits.
std::optional<RecomputationChoice> in_fewest_blocks(const Plan& plan, ActivationCheckpointConfig setting) {
  const int64_t layers = plan.architecture.num_hidden_layers;
  std::vector<int64_t> every;  // ascending; each gives another number of blocks
  for (int64_t n = 1; n <= layers; ++n) {
    if (every.empty() || layers / n < layers / every.back()) every.push_back(n);
  }
  std::optional<RecomputationChoice> best;
  for (size_t fits_at = 0, fails_at = every.size(); fails_at - fits_at > 1;) {
    const size_t middle = (fits_at + fails_at) / 2;
    setting.layers = every[middle];
    const RecomputationChoice choice = choice_of(plan, setting);
    if (choice.fits) best = choice;
    (choice.fits ? fits_at : fails_at) = middle;
  }
  return best;
}

// Whether the memory of a rank is limited, by the user or by a known device.
bool has_limit(const Plan& plan) {
  const Fit fit = fit_of(plan);
  return fit.device_bytes || fit.limit_bytes;
}

}  // namespace

std::vector<RecomputationChoice> recomputation_choices(const Plan& plan) {
  std::vector<RecomputationChoice> choices;
  for (const ActivationCheckpointConfig& setting : settings_of(plan)) choices.push_back(choice_of(plan, setting));
  if (!choices.front().fits) {
    const std::vector<RecomputationChoice> all = choices;
    for (const RecomputationChoice& choice : all) {
      if (!choice.fits || choice.setting.layers > 1) continue;
      const auto fewest = in_fewest_blocks(plan, choice.setting);
      if (fewest && !(fewest->chosen)) choices.push_back(*fewest);
    }
  }
  for (RecomputationChoice& choice : choices) choice.extra_bytes = choice.sent_bytes - choices.front().sent_bytes;
  return choices;
}

const RecomputationChoice* recommended(const std::vector<RecomputationChoice>& choices, const Plan& plan) {
  if (!has_limit(plan)) return nullptr;
  const RecomputationChoice* best = nullptr;
  const auto cost = [](const RecomputationChoice& c) {
    return std::tuple(c.step_seconds, c.extra_flops, c.extra_bytes, c.repeated_operations);
  };
  for (const RecomputationChoice& choice : choices) {
    if (choice.fits && (best == nullptr || cost(choice) < cost(*best))) best = &choice;
  }
  return best;
}

std::string explain_recomputation_choices(const Plan& plan) {
  const std::vector<RecomputationChoice> choices = recomputation_choices(plan);
  const RecomputationChoice* const best = recommended(choices, plan);
  std::vector<std::vector<std::string>> rows = {
      {"recomputed", "step", "peak memory", "more FLOPs", "more bytes sent", ""}};
  for (const RecomputationChoice& choice : choices) {
    const bool is_legal = choice.is_legal();
    std::vector<std::string> remarks;
    if (choice.chosen) remarks.emplace_back("as planned");
    if (&choice == best) remarks.emplace_back("recommended");
    if (!is_legal) remarks.push_back("refused: " + choice.refusal);
    if (is_legal && !choice.fits) remarks.emplace_back("does not fit");
    rows.push_back({choice.name, is_legal ? precise_seconds(choice.step_seconds) : "",
                    is_legal ? format_bytes(static_cast<double>(choice.memory_bytes)) : "",
                    fmt::format("{:.1f} %", 100 * choice.extra_flops), is_legal ? grouped(choice.extra_bytes) : "",
                    join(remarks, ", ")});
  }
  if (!plan.step_time) {
    for (auto& row : rows) row.erase(row.begin() + 1);
  }
  std::string out = text_table(rows);
  if (has_limit(plan)) return out;
  return out + "  run.memory_gib_per_rank = 0 sets no limit; with a limit, the cheapest that fits is recommended\n";
}

}  // namespace orthant

#include "advice/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "advice/recomputation_choices.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"
#include "hardware/hardware.h"

namespace orthant {
namespace {

// Returns the groups of ranks with which a rank exchanges messages: one for each axis, and one for all gradients.
int count_communicators(const Plan& plan) {
  int count = 0;
  for (const Axis& axis : plan.mesh.axes) count += axis.size > 1 ? 1 : 0;
  return count > 1 ? count + 1 : count;
}

std::string gib(int64_t bytes) { return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / 0x1p30); }

// "measured", "assumed", or how many tables of the profile are measured.
std::string origin_text(const Hardware& hardware) {
  const std::vector<TableOrigin> tables = origins(hardware);
  const auto measured = std::ranges::count(tables, true, &TableOrigin::measured);
  if (measured == 0) return "all values assumed";
  if (measured == std::ssize(tables)) return "measured";
  return fmt::format("{} of {} tables measured, the others assumed", measured, tables.size());
}

std::string step_text(const Plan& plan) {
  const StepTime& step = *plan.step_time;
  const double tokens = static_cast<double>(plan.tokens_per_step()) / step.seconds;
  return fmt::format(
      "  step    {:.4g} s: {} tokens/s, {} on each device; {:.1f} % of the devices' peak FLOP/s (MFU), {:.1f} % if\n"
      "          attention counts all pairs of tokens\n",
      step.seconds, grouped(std::llround(tokens)), grouped(std::llround(tokens / plan.mesh.size())),
      100 * model_flops_utilization(plan, step.seconds, false),
      100 * model_flops_utilization(plan, step.seconds, true));
}

// The parts of the step, as shares of it. Parts below 0.05 % are left out.
std::string time_text(const Plan& plan) {
  const StepTime& step = *plan.step_time;
  std::vector<std::string> parts;
  const auto add = [&](const std::string& name, double seconds) {
    const double percent = 100 * seconds / step.seconds;
    if (percent >= 0.05) parts.push_back(fmt::format("{} {:.1f} %", name, percent));
  };
  add("products", step.passes.products);
  add("attention", step.passes.attention);
  add("other kernels", step.passes.kernels);
  for (const auto& [axis, seconds] : step.passes.communication) add("messages over " + axis, seconds);
  add("idle", step.idle);
  add("waits for cores that ranks share", step.sharing);
  add("gradient reductions", step.reductions);
  add("update", step.update);
  add("gathers after it", step.gathers);
  return "  time    " + join(parts, ", ") + "\n";
}

std::string memory_text(const Plan& plan) {
  const Fit fit = fit_of(plan);
  const MemoryBytes& memory = plan.memory[static_cast<size_t>(fit.rank)];
  const std::string moment = memory.peak ? "at " + to_string(*memory.peak) : "in the update";
  std::string text = fmt::format(
      "  memory  rank {} needs most: {} of tensors {}, and about {} more for context, communicators\n"
      "          and allocator; a device has {}: ",
      fit.rank, gib(fit.tensor_bytes), moment, gib(fit.other_bytes), gib(fit.device_bytes));
  if (fit.fits()) return text + fmt::format("fits with {} to spare\n", gib(fit.spare_bytes()));
  text += fmt::format("lacks {}\n", gib(-fit.spare_bytes()));
  const std::optional<Alternative> change = fastest_that_fits(plan);
  if (!change) {
    return text +
           "          no setting of ZeRO and recomputation fits: use more devices, or shard the model over tensor\n"
           "          or pipeline ranks\n";
  }
  return text + fmt::format("          {} fits, with a step of {:.4g} s\n", change->change, change->step_seconds);
}

}  // namespace

Fit fit_of(const Plan& plan) { return fit_of(plan, plan.largest_memory_bytes()); }

Fit fit_of(const Plan& plan, int64_t tensor_bytes) {
  const Hardware& hardware = *plan.facts.hardware;
  const ProcessMemoryTable& process = hardware.process_memory;
  const double other = process.context_bytes + process.communicator_bytes * count_communicators(plan) +
                       process.allocator_slack_share * static_cast<double>(tensor_bytes);
  return {.rank = plan.worst_rank(),
          .tensor_bytes = tensor_bytes,
          .other_bytes = std::llround(other),
          .device_bytes = std::llround(hardware.device.memory_bytes)};
}

std::optional<Alternative> fastest_that_fits(const Plan& plan) {
  if (fit_of(plan).fits()) return {};
  std::optional<Alternative> best;
  const auto consider = [&](Alternative other) {
    const bool fits = fit_of(plan, other.memory_bytes).fits();
    if (fits && (!best || other.step_seconds < best->step_seconds)) best = std::move(other);
  };
  for (const Alternative& other : alternatives_to(plan)) consider(other);
  for (const ZeroChoice& zero : zero_choices(plan)) {
    for (const RecomputationChoice& recompute : recomputation_choices(plan)) {
      if (recompute.setting.layers > 1) continue;
      Config other = plan.config;
      set_zero(other.parallelism, zero.stage, zero.reshard.value_or(Reshard::step));
      other.activation_checkpoint = recompute.setting;
      try {
        const Plan changed = make_plan(other, plan.facts);
        consider({.change = changed_settings(plan.config, other),
                  .memory_bytes = changed.largest_memory_bytes(),
                  .step_seconds = changed.step_time->seconds});
      } catch (const ConfigError&) {
        continue;  // the run is legal, but not with these settings
      }
    }
  }
  return best;
}

std::string timeline_text(const Plan& plan, double time) {
  return plan.step_time ? fmt::format("{:.2f} ms", 1e3 * time) : fmt::format("{:.2f}", time);
}

std::string explain_answer(const Plan& plan) {
  if (!plan.step_time) return "";
  const Hardware& hardware = *plan.facts.hardware;
  return fmt::format("on {}, {}: {}\n", hardware.name, origin_text(hardware), hardware.description) + step_text(plan) +
         time_text(plan) + memory_text(plan) + "\n";
}

}  // namespace orthant

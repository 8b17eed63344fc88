// Compares a plan with the memory limit, and finds the alternatives that fit.
#include "advice/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "advice/alternatives.h"
#include "advice/answer.h"
#include "advice/recomputation_choices.h"
#include "advice/schedule_choices.h"
#include "advice/tensor_choices.h"
#include "base/errors.h"
#include "base/text.h"

namespace orthant {
std::string gib_number(int64_t bytes) {
  const double gib = static_cast<double>(bytes) / 0x1p30;
  const double digit = std::pow(10, std::floor(std::log10(gib)) - 2);
  return fmt::format("{:.3g}", std::ceil(gib / digit) * digit);
}

std::string gib_text(int64_t bytes) { return gib_number(bytes) + " GiB"; }

bool fits_a_rank(const Config& config, int64_t bytes) {
  const double gib = config.run.memory_gib_per_rank;
  return gib == 0 || static_cast<double>(bytes) <= gib * 0x1p30;
}

bool fits_a_device(const Plan& plan, int64_t bytes) {
  return fits_a_rank(plan.config, bytes) && (!plan.facts.hardware || fit_of(plan, bytes).fits());
}

void require_fitting(const Plan& plan) {
  const int64_t largest = plan.largest_memory_bytes();
  if (fits_a_rank(plan.config, largest)) return;
  std::vector<std::string> fitting;
  const std::vector<RecomputationChoice> recomputations = recomputation_choices(plan);
  const RecomputationChoice* const best = cheapest(recomputations, plan.config);
  if (best != nullptr && best->setting.mode == "selective") {
    Config other = plan.config;
    other.activation_checkpoint = best->setting;
    fitting.push_back(fmt::format("{} ({})", changed_settings(plan.config, other), gib_text(best->memory_bytes)));
  }
  for (const Alternative& other : alternatives_to(plan)) {
    if (fits_a_rank(plan.config, other.memory_bytes)) {
      fitting.push_back(fmt::format("{} ({})", other.change, gib_text(other.memory_bytes)));
    }
  }
  for (const TensorChoice& other : tensor_choices(plan)) {
    if (other.refusal.empty() && fits_a_rank(plan.config, other.memory_bytes)) {
      fitting.push_back(fmt::format("the tensor mesh {} ({})", other.name, gib_text(other.memory_bytes)));
    }
  }
  for (const ScheduleChoice& other : schedule_choices(plan)) {
    if (!other.chosen && other.refusal.empty() && fits_a_rank(plan.config, other.memory_bytes)) {
      fitting.push_back(fmt::format("parallelism.pipeline_parallel_schedule = \"{}\"{} ({})", other.name,
                                    other.otherwise.empty() ? "" : " with " + other.otherwise,
                                    gib_text(other.memory_bytes)));
    }
  }
  const std::string ways =
      fitting.empty() ? "no single change that was compared fits: use more ranks, shorter sequences or a smaller model"
                      : "changes that fit: " + join(fitting, ", ");
  throw ConfigError(fmt::format("{} must be at least {}, the bytes of the tensors of rank {}; set it to {} or more; {}",
                                plan.config.locate("run.memory_gib_per_rank"), gib_text(largest),
                                plan.worst_rank(), gib_number(largest), ways));
}

}  // namespace orthant

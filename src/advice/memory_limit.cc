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
#include "advice/vocabulary_choices.h"
#include "advice/zero_choices.h"
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

namespace {

// Single changes that fit run.memory_gib_per_rank, each as "KEY = VALUE (0.0235 GiB)".
class FittingChanges {
 public:
  explicit FittingChanges(const Plan& plan) : plan_(plan) {
    add_recomputation();
    for (const Alternative& other : alternatives_to(plan)) add(other.change, other.memory_bytes);
    for (const ZeroChoice& other : zero_choices(plan)) {
      Config config = plan.config;
      set_zero(config.parallelism, other.stage, other.reshard.value_or(Reshard::step));
      if (other.refusal.empty() && !other.chosen) add(changed_settings(plan.config, config), other.memory_bytes);
    }
    for (const TensorChoice& other : tensor_choices(plan)) {
      if (other.refusal.empty()) add("the tensor mesh " + other.name, other.memory_bytes);
    }
    for (const ScheduleChoice& other : schedule_choices(plan)) {
      if (!other.chosen && other.refusal.empty()) {
        add_named("parallelism.pipeline_parallel_schedule", other.name, other.otherwise, other.memory_bytes);
      }
    }
    for (const VocabularyChoice& other : vocabulary_choices(plan)) {
      if (!other.chosen && other.refusal.empty()) {
        add_named("parallelism.vocabulary_parallel", other.name, other.otherwise, other.memory_bytes);
      }
    }
  }

  const std::vector<std::string>& texts() const { return texts_; }

 private:
  void add(const std::string& change, int64_t bytes) {
    const std::string text = fmt::format("{} ({})", change, gib_text(bytes));
    const bool is_new = std::ranges::find(texts_, text) == texts_.end();
    if (is_new && fits_a_rank(plan_.config, bytes)) texts_.push_back(text);
  }
  void add_named(const char* key, const std::string& name, const std::string& otherwise, int64_t bytes) {
    add(fmt::format("{} = \"{}\"{}", key, name, otherwise.empty() ? "" : " with " + otherwise), bytes);
  }
  void add_recomputation() {
    const std::vector<RecomputationChoice> recomputations = recomputation_choices(plan_);
    const RecomputationChoice* const best = cheapest(recomputations, plan_.config);
    if (best == nullptr || best->setting.mode != "selective") return;
    Config other = plan_.config;
    other.activation_checkpoint = best->setting;
    add(changed_settings(plan_.config, other), best->memory_bytes);
  }

  const Plan& plan_;
  std::vector<std::string> texts_;
};

// Names what makes the run fit: single changes, or a combined one, or the least memory that was found.
std::string ways_to_fit(const Plan& plan) {
  const FittingChanges changes(plan);
  if (!changes.texts().empty()) return "changes that fit: " + join(changes.texts(), ", ");
  std::optional<Alternative> least;
  const auto fits = [&](int64_t bytes) { return fits_a_rank(plan.config, bytes); };
  if (const auto change = combined_change(plan, fits, &least)) {
    return fmt::format("of the changes that were compared the least that fits is {} ({})", change->change,
                       gib_text(change->memory_bytes));
  }
  const std::string smallest =
      least && least->memory_bytes < plan.largest_memory_bytes()
          ? fmt::format(" (the least that was found is {}, with {})", gib_text(least->memory_bytes), least->change)
          : "";
  return fmt::format("no change that was compared fits{}: use more ranks, shorter sequences or a smaller model",
                     smallest);
}

}  // namespace

void require_fitting(const Plan& plan) {
  const int64_t bytes = plan.largest_memory_bytes();
  if (fits_a_rank(plan.config, bytes)) return;
  throw ConfigError(fmt::format("{} must be at least {}, the bytes of the tensors of rank {}; set it to {} or more; {}",
                                plan.config.locate("run.memory_gib_per_rank"), gib_text(bytes), plan.worst_rank(),
                                gib_number(bytes), ways_to_fit(plan)));
}

}  // namespace orthant

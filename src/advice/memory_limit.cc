// Compares a plan with the memory limit, and finds the alternatives that fit.
#include "advice/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>

#include "advice/alternatives.h"
#include "advice/fit.h"
#include "advice/recomputation_choices.h"
#include "advice/schedule_choices.h"
#include "advice/tensor_choices.h"
#include "advice/vocabulary_choices.h"
#include "advice/zero_choices.h"
#include "base/errors.h"
#include "base/text.h"

namespace orthant {
namespace {

// Single changes that fit, each as "KEY=VALUE (0.0235 GiB)".
class FittingChanges {
 public:
  explicit FittingChanges(const Plan& plan) : plan_(plan) {
    add_recomputation();
    for (const Alternative& other : alternatives_to(plan)) add(other.change, other);
    for (const ZeroChoice& other : zero_choices(plan)) {
      Config config = plan.config;
      set_zero(config.parallelism, other.stage, other.reshard.value_or(Reshard::step));
      if (!other.chosen) add(changed_settings(plan.config, config), other);
    }
    for (const TensorChoice& other : tensor_choices(plan)) {
      add("the tensor mesh " + other.name, other);
    }
    for (const ScheduleChoice& other : schedule_choices(plan)) {
      if (!other.chosen) add_named("parallelism.pipeline_parallel_schedule", other);
    }
    for (const VocabularyChoice& other : vocabulary_choices(plan)) {
      if (!other.chosen) add_named("parallelism.vocabulary_parallel", other);
    }
  }

  const std::vector<std::string>& texts() const { return texts_; }

 private:
  template <class Choice>
  void add(const std::string& change, const Choice& choice) {
    if (!choice.fits) return;
    const std::string text = fmt::format("{} ({})", change, gib_text(choice.memory_bytes));
    if (std::ranges::find(texts_, text) == texts_.end()) texts_.push_back(text);
  }
  template <class Choice>
  void add_named(const char* key, const Choice& choice) {
    add(fmt::format("{}={}{}", key, choice.name, choice.otherwise.empty() ? "" : " " + choice.otherwise), choice);
  }
  void add_recomputation() {
    const std::vector<RecomputationChoice> recomputations = recomputation_choices(plan_);
    const RecomputationChoice* const best = cheapest(recomputations, plan_);
    if (best == nullptr || best->setting.mode != "selective") return;
    Config other = plan_.config;
    other.activation_checkpoint = best->setting;
    add(changed_settings(plan_.config, other), *best);
  }

  const Plan& plan_;
  std::vector<std::string> texts_;
};

// Names what makes the run fit: single changes, or a combined one, or the least memory that was found.
std::string ways_to_fit(const Plan& plan) {
  const FittingChanges changes(plan);
  if (!changes.texts().empty()) return "changes that fit: " + join(changes.texts(), ", ");
  std::optional<Alternative> least;
  if (const auto change = combined_change(plan, &least)) {
    return fmt::format("of the changes that were compared the least that fits is {} ({})", change->change,
                       gib_text(change->memory_bytes));
  }
  const std::string smallest =
      least && least->memory_bytes < plan.largest_memory_bytes()
          ? fmt::format(" (the least that was found is {}, with {})", gib_text(least->memory_bytes), least->change)
          : "";
  return fmt::format("no change that was compared fits{}: use more ranks, shorter sequences or a smaller model{}",
                     smallest, plan.facts.hardware ? ", or let orthant plan --search find a layout" : "");
}

}  // namespace

void require_fitting(const Plan& plan) {
  const int64_t bytes = plan.largest_memory_bytes();
  if (within_limit(plan.config, bytes)) return;
  const std::optional<int64_t> device = fit_of(plan).device_bytes;
  const std::string way = device && bytes > *device
                              ? fmt::format("a device has {}", format_bytes(static_cast<double>(*device)))
                              : fmt::format("set it to {} or more", gib_number(bytes));
  throw ConfigError(fmt::format("{} must be at least {}, the bytes of the tensors of rank {}; {}; {}",
                                plan.config.locate("run.memory_gib_per_rank"), gib_text(bytes), plan.worst_rank(), way,
                                ways_to_fit(plan)));
}

}  // namespace orthant

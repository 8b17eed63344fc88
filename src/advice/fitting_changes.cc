// Collects the compared plans that fit.
#include "advice/fitting_changes.h"

#include <fmt/format.h>

#include <algorithm>

#include "advice/fit.h"
#include "advice/recomputation_choices.h"
#include "advice/schedule_choices.h"
#include "advice/tensor_choices.h"
#include "advice/vocabulary_choices.h"
#include "advice/zero_choices.h"
#include "config/from_config.h"

namespace orthant {
namespace {

class FittingChanges {
 public:
  explicit FittingChanges(const Plan& plan) : plan_(plan) {
    add_recomputation();
    for (Alternative& other : alternatives_to(plan)) {
      const bool can_be_followed = !other.offloads || offloads(plan.config);
      if (other.fits && can_be_followed) found_.push_back(std::move(other));
    }
    for (const ZeroChoice& other : zero_choices(plan)) {
      Config config = plan.given;
      set_zero(config.parallelism, other.stage, other.reshard.value_or(Reshard::step));
      add(changed_settings(plan.given, config), other, other.step_seconds);
    }
    for (const TensorChoice& other : tensor_choices(plan)) {
      add(changed_settings(plan.given, with_tensor_plan(plan.given, other.tensor)), other, other.step_seconds);
    }
    for (const ScheduleChoice& other : schedule_choices(plan)) {
      add_named("parallelism.pipeline_parallel_schedule", other);
    }
    for (const VocabularyChoice& other : vocabulary_choices(plan)) add_named("parallelism.vocabulary_parallel", other);
  }

  std::vector<Alternative> all() { return std::move(found_); }

 private:
  template <class Choice>
  void add(const std::string& change, const Choice& choice, double step_seconds) {
    if (!choice.fits || choice.chosen || std::ranges::count(found_, change, &Alternative::change) > 0) return;
    found_.push_back(
        {.change = change, .memory_bytes = choice.memory_bytes, .step_seconds = step_seconds, .fits = true});
  }
  template <class Choice>
  void add_named(const char* key, const Choice& choice) {
    const std::string otherwise = choice.otherwise.empty() ? "" : " " + choice.otherwise;
    add(fmt::format("{}={}{}", key, choice.name, otherwise), choice, plan_.step_time ? choice.step : 0);
  }
  void add_recomputation() {
    const std::vector<RecomputationChoice> recomputations = recomputation_choices(plan_);
    const RecomputationChoice* const best = cheapest(recomputations, plan_);
    if (best == nullptr || best->setting.mode != "selective") return;
    Config other = plan_.given;
    other.activation_checkpoint = best->setting;
    add(changed_settings(plan_.given, other), *best, best->step_seconds);
  }

  const Plan& plan_;
  std::vector<Alternative> found_;
};

}  // namespace

std::vector<Alternative> fitting_changes(const Plan& plan) { return FittingChanges(plan).all(); }

std::optional<Alternative> fastest_that_fits(const Plan& plan) {
  if (fit_of(plan).fits()) return {};
  std::vector<Alternative> changes = fitting_changes(plan);
  const std::vector<RecomputationChoice> recomputations = recomputation_choices(plan);
  for (const ZeroChoice& zero : zero_choices(plan)) {
    for (const RecomputationChoice& recompute : recomputations) {
      Config other = plan.given;
      set_zero(other.parallelism, zero.stage, zero.reshard.value_or(Reshard::step));
      other.activation_checkpoint = recompute.setting;
      std::optional<Alternative> planned = plan_change(plan, other);
      if (planned && planned->fits) changes.push_back(std::move(*planned));
    }
  }
  if (changes.empty()) return combined_change(plan);
  return *std::ranges::min_element(changes, {}, &Alternative::step_seconds);
}

}  // namespace orthant

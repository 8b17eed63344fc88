// Collects the compared plans that fit.
#include "advice/fitting_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "advice/fit.h"
#include "advice/recomputation_choices.h"
#include "advice/schedule_choices.h"
#include "advice/tensor_choices.h"
#include "advice/vocabulary_choices.h"
#include "advice/zero_choices.h"
#include "config/from_config.h"

namespace orthant {
namespace {

// The plans that fitting_changes() and fastest_that_fits() look at.
class FittingChanges {
 public:
  explicit FittingChanges(const Plan& plan)
      : plan_(plan), recomputations_(recomputation_choices(plan)), zero_(zero_choices(plan)) {
    add_recomputation();
    for (Alternative& other : alternatives_to(plan)) {
      const bool can_be_followed = !other.offloads || offloads(plan.config);
      if (other.fits && can_be_followed) found_.push_back(std::move(other));
    }
    for (const ZeroChoice& other : zero_) {
      add(changed_settings(plan.given, with_stage(other)), other);
    }
    for (const TensorChoice& other : tensor_choices(plan)) {
      add(changed_settings(plan.given, with_tensor_plan(plan.given, other.tensor)), other);
    }
    for (const ScheduleChoice& other : schedule_choices(plan)) {
      add_named("parallelism.pipeline_parallel_schedule", other);
    }
    for (const VocabularyChoice& other : vocabulary_choices(plan)) add_named("parallelism.vocabulary_parallel", other);
  }

  // Adds the stages of ZeRO with the sets of recomputed operations, as far as they may be the fastest that fits. A
  // stage that does not fit if every block recomputes fits with no other set.
  void add_stages_that_recompute() {
    for (const ZeroChoice& zero : zero_) {
      if (!plan_with(zero, {.mode = "full"})) continue;
      for (const RecomputationChoice& recompute : recomputations_) plan_with(zero, recompute.setting);
    }
  }

  const Alternative* fastest() const {
    const auto found = std::ranges::min_element(found_, {}, &Alternative::step_seconds);
    return found == found_.end() ? nullptr : &*found;
  }
  std::vector<Alternative> all() { return std::move(found_); }

 private:
  void add(const std::string& change, const ComparedPlan& choice) {
    if (!choice.fits || choice.chosen || std::ranges::count(found_, change, &Alternative::change) > 0) return;
    found_.push_back({choice, change});
  }
  template <class Choice>
  void add_named(const char* key, const Choice& choice) {
    const std::string otherwise = choice.otherwise.empty() ? "" : " " + choice.otherwise;
    add(fmt::format("{}={}{}", key, choice.name, otherwise), choice);
  }
  void add_recomputation() {
    const RecomputationChoice* const best = recommended(recomputations_, plan_);
    if (best == nullptr || best->setting.mode != "selective") return;
    Config other = plan_.given;
    other.activation_checkpoint = best->setting;
    add(changed_settings(plan_.given, other), *best);
  }
  Config with_stage(const ZeroChoice& zero) const {
    Config config = plan_.given;
    set_zero(config.parallelism, zero.stage, zero.reshard.value_or(Reshard::step));
    return config;
  }
  // Returns false if the run does not fit. It is added if it fits and is the fastest.
  bool plan_with(const ZeroChoice& zero, ActivationCheckpointConfig recomputation) {
    recomputation.offload = plan_.given.activation_checkpoint.offload;
    Config config = with_stage(zero);
    config.activation_checkpoint = std::move(recomputation);
    const Alternative* const best = fastest();
    const std::optional<Alternative> planned = plan_change(plan_, config, best ? best->step_seconds : INFINITY);
    if (planned && planned->fits) found_.push_back(*planned);
    return !planned || planned->fits;
  }

  const Plan& plan_;
  const std::vector<RecomputationChoice> recomputations_;
  const std::vector<ZeroChoice> zero_;
  std::vector<Alternative> found_;
};

}  // namespace

std::vector<Alternative> fitting_changes(const Plan& plan) { return FittingChanges(plan).all(); }

std::optional<Alternative> fastest_that_fits(const Plan& plan) {
  if (fit_of(plan).fits()) return {};
  FittingChanges changes(plan);
  changes.add_stages_that_recompute();
  if (const Alternative* const fastest = changes.fastest()) return *fastest;
  return combined_change(plan);
}

}  // namespace orthant

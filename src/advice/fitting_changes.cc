// Collects the compared plans that fit.
#include "advice/fitting_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "advice/fit.h"
#include "advice/layout_bounds.h"
#include "advice/recomputation_choices.h"
#include "advice/schedule_choices.h"
#include "advice/tensor_choices.h"
#include "advice/vocabulary_choices.h"
#include "advice/zero_choices.h"
#include "config/from_config.h"

namespace orthant {
namespace {

// Changes of a plan that fit.
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

  // Adds runs on the same mesh with other stages of ZeRO, sets of recomputed operations and sizes of microbatches, as
  // far as they may be the fastest that fits. Where neither full recomputation nor the set that needs least memory in
  // the plan's own stage fits, the other sets are not tried.
  void add_runs_on_the_mesh() {
    const RecomputationChoice& smallest =
        *std::ranges::min_element(recomputations_, {}, [](const RecomputationChoice& choice) {
          return choice.is_legal() ? choice.memory_bytes : std::numeric_limits<int64_t>::max();
        });
    const ModelParameters parameters(plan_.given, plan_.facts);
    const int64_t largest = largest_microbatch(plan_), most_bytes = *most_tensor_bytes(plan_);
    for (const Config& stage : stages()) {
      if (state_bytes_bound(stage, plan_.facts, parameters) > most_bytes) continue;
      for (int64_t size = largest; size >= 1; size /= 2) {
        Config config = stage;
        if (size < largest) config.training.local_batch_size = size;
        const bool full_may_fit = add_if_fastest(config, {.mode = "full"});
        if (!add_if_fastest(config, smallest.setting) && !full_may_fit) continue;
        for (const RecomputationChoice& recompute : recomputations_) add_if_fastest(config, recompute.setting);
      }
    }
  }

  // The fastest on the plan's number of ranks, or on others.
  const Alternative* fastest(bool on_other_ranks = false) const {
    const Alternative* best = nullptr;
    for (const Alternative& other : found_) {
      if (other.on_other_ranks != on_other_ranks) continue;
      if (best == nullptr || other.step_seconds < best->step_seconds) best = &other;
    }
    return best;
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
  // The run with every stage of ZeRO, or as it is if there are no states to shard.
  std::vector<Config> stages() const {
    if (zero_.empty()) return {plan_.given};
    std::vector<Config> all;
    for (const ZeroChoice& zero : zero_) {
      if (zero.is_legal()) all.push_back(with_stage(zero));
    }
    return all;
  }
  // Returns false if the run with this recomputation does not fit. Adds it if it fits and is the fastest.
  bool add_if_fastest(Config config, ActivationCheckpointConfig recomputation) {
    recomputation.offload = plan_.given.activation_checkpoint.offload;
    config.activation_checkpoint = std::move(recomputation);
    const Alternative* const best = fastest();
    std::optional<Alternative> planned = plan_change(plan_, config, best ? best->step_seconds : INFINITY);
    if (planned && !planned->fits) return false;
    if (planned) found_.push_back(std::move(*planned));
    return true;
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
  changes.add_runs_on_the_mesh();
  if (const Alternative* const fastest = changes.fastest()) return *fastest;
  if (std::optional<Alternative> combined = combined_change(plan)) return combined;
  const Alternative* const on_other_ranks = changes.fastest(true);
  return on_other_ranks ? std::optional(*on_other_ranks) : std::nullopt;
}

}  // namespace orthant

// Chooses the tensor mesh if the run file leaves it open, and completes refusals.
#include "advice/advised_plan.h"

#include "advice/memory_limit.h"
#include "advice/tensor_choices.h"
#include "config/refusal.h"
#include "plan/plan_limits.h"

namespace orthant {
namespace {

// Plans the run. With tensor_parallel_kind = "auto", it selects the tensor mesh first.
Plan plan_of_choice(const Config& config, const RunFacts& facts) {
  if (config.parallelism.tensor_parallel_kind != "auto") return make_plan(config, facts);
  require_countable(config, make_architecture(config, facts.vocab_size), facts.ranks);
  const int tensor_ranks = make_mesh(config, facts.ranks).axis_size(kColumn);
  return make_plan(with_cheapest_tensor_plan(config, tensor_ranks, facts), facts);
}

// Like plan_of_choice(), but completes the ways out of a refusal.
Plan plan_or_refuse(const Config& config, const RunFacts& facts) {
  try {
    return plan_of_choice(config, facts);
  } catch (const Refusal& refusal) {
    throw completed(refusal, config, [&](const Config& other) {
      RunFacts of_other = facts;
      if (other.run.ranks != config.run.ranks) of_other.ranks = static_cast<int>(other.run.ranks);
      check_laws(other, {.cuda = true, .nccl = true, .no_ucx = {}});
      plan_of_choice(other, of_other);
    });
  }
}

}  // namespace

Plan advised_plan(const Config& config, const RunFacts& facts) {
  Plan plan = plan_or_refuse(config, facts);
  require_fitting(plan);
  return plan;
}

}  // namespace orthant

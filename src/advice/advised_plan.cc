// Searches for the nearest legal settings if a run is refused.
#include "advice/advised_plan.h"

#include "advice/memory_limit.h"
#include "advice/nearest_legal.h"
#include "advice/tensor_choices.h"

namespace orthant {
namespace {

// Returns the error of a refused run, with settings that fulfil all laws.
ConfigError advised(const Refusal& refusal, const Config& config, const BuildFeatures& features, RunFacts facts) {
  return with_remedies(refusal, nearest_legal(config, refusal, [&](const Config& other) {
                         check_config(other, features);
                         facts.ranks = static_cast<int>(other.run.ranks);
                         check_legal_plan(other, facts);
                       }));
}

}  // namespace

void check_with_advice(const Config& config, const BuildFeatures& features) {
  try {
    check_config(config, features);
  } catch (const Refusal& refusal) {
    throw advised(refusal, config, features, {});  // the tokenizer's vocabulary is not known yet
  }
}

Plan advised_plan(const Config& config, const RunFacts& facts) {
  try {
    Plan plan = make_plan(with_chosen_tensor_plan(config, facts), facts);
    require_fitting(plan);
    return plan;
  } catch (const Refusal& refusal) {
    Config on_ranks = config;
    on_ranks.run.ranks = facts.ranks;
    throw advised(refusal, on_ranks, {.cuda = true, .nccl = true, .no_ucx = {}}, facts);
  }
}

}  // namespace orthant

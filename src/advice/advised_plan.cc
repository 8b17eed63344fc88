// Searches for the nearest legal settings if a run is refused.
#include "advice/advised_plan.h"

#include "advice/auto_layout.h"
#include "advice/fit.h"
#include "advice/memory_limit.h"
#include "advice/nearest_legal.h"
#include "advice/tensor_choices.h"

namespace orthant {
namespace {

// Prefers remedies whose plans fit run.memory_gib_per_rank. If none fits, each also sets the limit that its plan needs.
std::vector<Remedy> within_memory(std::vector<Remedy> remedies, const Config& config, RunFacts facts) {
  std::vector<Remedy> fitting;
  for (Remedy& remedy : remedies) {
    const Config other = *with_settings(config, remedy);
    facts.ranks = static_cast<int>(other.run.ranks);
    const int64_t bytes = make_plan(with_chosen_tensor_plan(other, facts), facts).largest_memory_bytes();
    if (within_limit(config, bytes)) {
      fitting.push_back(remedy);
    } else {
      remedy.push_back({"run.memory_gib_per_rank", gib_number(bytes)});
    }
  }
  return fitting.empty() ? remedies : fitting;
}

// Returns the error of a refused run, with settings that fulfil all laws.
ConfigError advised(const Refusal& refusal, const Config& config, const BuildFeatures& features, RunFacts facts) {
  std::vector<Remedy> remedies = nearest_legal(config, refusal, [&](const Config& other) {
    check_config(other, features);
    facts.ranks = static_cast<int>(other.run.ranks);
    check_legal_plan(other, facts);
  });
  const bool has_limit = config.run.memory_gib_per_rank > 0 && facts.vocab_size > 0;
  return with_remedies(refusal, has_limit ? within_memory(std::move(remedies), config, facts) : remedies);
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
    Plan plan = make_plan(with_chosen_tensor_plan(with_chosen_layout(config, facts), facts), facts);
    require_fitting(plan);
    return plan;
  } catch (const Refusal& refusal) {
    Config on_ranks = config;
    on_ranks.run.ranks = facts.ranks;
    throw advised(refusal, on_ranks, {.only_plans = config.run.device == "cuda", .nccl = true, .no_ucx = {}}, facts);
  }
}

}  // namespace orthant

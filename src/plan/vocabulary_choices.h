// The ways to put the vocabulary's layers over the plan's pipeline, side by side: what a rank computes, and holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace orthant {

struct VocabularyChoice {
  std::string name;                          // as in a run file
  std::vector<double> compute;               // of a step, by pipeline rank, in units of its timeline
  std::vector<int64_t> parameter_bytes = {};  // of the weights, by pipeline rank
  double makespan = 0;
  int64_t memory_bytes = 0;  // of the largest rank
  std::string otherwise = {};  // what else its run file has to say otherwise
  std::string refusal = {};  // why it cannot be; empty if it can
  bool chosen = false;       // as planned
};

/// Every value of parallelism.vocabulary_parallel. Empty where the mesh has one pipeline rank.
std::vector<VocabularyChoice> vocabulary_choices(const Plan& plan);

/// The one whose step is the shortest by its FLOPs; of those within 1 % of that, the one that holds least.
const VocabularyChoice& recommended(const std::vector<VocabularyChoice>& choices);

/// A table of the choices, and what follows from it; nothing for one pipeline rank.
std::string explain_vocabulary_choices(const Plan& plan);

}  // namespace orthant

// Compares the ways to place the vocabulary layers on the plan's pipeline: computation and memory of each rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "advice/compared_plan.h"
#include "plan/plan.h"

namespace orthant {

/// One value of parallelism.vocabulary_parallel, and its costs.
struct VocabularyChoice : ComparedPlan {
  std::string name;                          // as in a run file
  std::vector<double> compute;               // computation per step by pipeline rank, in units of the plan's timeline
  std::vector<int64_t> parameter_bytes = {};  // of the weights, by pipeline rank
  double step = 0;                            // see Plan::step_length()
  std::string otherwise = {};                 // the other settings that must change with this one; may be empty

  /// True if all ranks wait for collectives in every microbatch. Without hardware, the time of these is not known.
  bool waits_at_barriers() const { return name == "interlaced"; }
};

/// Returns every value of parallelism.vocabulary_parallel. Empty if the mesh has one pipeline rank.
std::vector<VocabularyChoice> vocabulary_choices(const Plan& plan);

/// Returns the choice with the shortest step of those that fit a device. Of the choices within 1 % of that, it takes
/// the one that needs least memory. A choice whose waits are not timed does not count. Returns nullptr if no choice
/// remains.
const VocabularyChoice* recommended(const std::vector<VocabularyChoice>& choices, const Plan& plan);

/// Returns a table of the choices with the recommendation; empty for one pipeline rank.
std::string explain_vocabulary_choices(const Plan& plan);

}  // namespace orthant

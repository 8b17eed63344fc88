// The vocabulary's two layers over the pipeline's ranks, as the run file says.
#pragma once

#include <string>

#include "parallel/vocabulary/plan.h"
#include "plan/plan.h"

namespace orthant {

/// Whether both layers are cut by rows over all pipeline ranks.
bool cuts_vocabulary(const Config& config);

/// For Plan::vocabulary. ConfigError where the mesh or the schedule has no room for what the run file asks for.
std::string vocabulary_order_of(const Config& config, const Mesh& mesh);

/// The order of the plan's output layer; null where the vocabulary is whole.
const VocabularyAlgorithm* algorithm_of(const Plan& plan);
/// Whether its S makes the gradient of the layer's input.
inline bool sums_early(const Plan& plan) { return algorithm_of(plan) != nullptr && algorithm_of(plan)->early(); }

/// By how many forwards of one stage backwards have to be later.
int later_for_vocabulary(const Config& config, int stages_per_rank);

/// The plan's schedule with what all ranks do for the vocabulary. ConfigError where a file's has no place for it.
Schedule with_vocabulary(const Plan& plan);

}  // namespace orthant

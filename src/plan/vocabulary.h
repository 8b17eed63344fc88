// Places the two vocabulary layers (embedding and output layer) on the pipeline ranks, as the run file asks.
#pragma once

#include <string>

#include "parallel/vocabulary/plan.h"
#include "plan/sharding.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// Returns the value of Sharding::vocabulary for several pipeline ranks. Throws ConfigError if the layers of the stages
/// or the schedule do not permit the run file's parallelism.vocabulary_parallel.
std::string vocabulary_order_of(const Config& config);

/// Returns the algorithm of the output layer; nullptr if the vocabulary is not sharded.
const VocabularyAlgorithm* algorithm_of(const Sharding& sharding);
/// True if the pass S of that algorithm also computes the gradient of the layer's input.
inline bool sums_input_gradient_early(const Sharding& sharding) {
  return algorithm_of(sharding) != nullptr && algorithm_of(sharding)->early();
}

/// Number of extra warm-up forwards of one stage that a rank does before its first backward.
int count_extra_warmup_forwards(const Config& config, int stages_per_rank);

/// Returns the schedule with the vocabulary passes of all ranks added. Throws ConfigError if the order of microbatches
/// in a schedule file does not permit that.
Schedule with_vocabulary(const Sharding& sharding, Schedule schedule, const Durations& durations);

}  // namespace orthant

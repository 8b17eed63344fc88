// Schedules with vocabulary parallelism, and durations for their passes.
#pragma once

#include <string_view>

#include "parallel/vocabulary/interlaced_plan.h"
#include "parallel/vocabulary/plan.h"
#include "schedule/validate.h"
#include "tests/parallel/pipeline/every_schedule.h"
#include "tests/parallel/vocabulary/published.h"
#include "tests/support/random.h"

namespace orthant {

/// Durations with the passes of a rank's vocabulary shard. The output layer takes output_s, split over S, Z, T and TW
/// as the algorithms split its three products.
inline Durations with_output(const Durations& durations, double output_s) {
  using enum ActionKind;
  return durations.with(S, output_s / 2).with(Z, output_s / 4).with(T, output_s / 2).with(TW, output_s / 2);
}

/// A schedule of the pipeline's table with vocabulary parallelism. extra_warmup_forwards < 0: the number that the
/// algorithm needs. input: also shard the embedding.
inline Schedule cut(std::string_view name, const VocabularyAlgorithm& algorithm, int ranks, int microbatches,
                    const Durations& durations, int extra_warmup_forwards = -1, bool input = true) {
  const PipelineSchedule& made = pipeline_schedule(name);
  if (extra_warmup_forwards < 0) extra_warmup_forwards = algorithm.extra_warmup_forwards(made.stages_per_rank);
  const Schedule plain = made.make({ranks, made.stages_per_rank, microbatches, durations, extra_warmup_forwards});
  return add_vocabulary(plain, algorithm, durations, input);
}

}  // namespace orthant

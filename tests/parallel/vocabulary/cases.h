// Schedules with the vocabulary's shares in them.
#pragma once

#include <string_view>

#include "parallel/vocabulary/interlaced_plan.h"
#include "parallel/vocabulary/plan.h"
#include "schedule/validate.h"
#include "tests/parallel/pipeline/every_schedule.h"
#include "tests/parallel/vocabulary/published.h"
#include "tests/support/random.h"

namespace orthant {

/// The output layer's share of a rank takes `output_s`, cut as the algorithms cut its three products.
inline Durations with_output(const Durations& durations, double output_s) {
  using enum ActionKind;
  return durations.with(S, output_s / 2).with(Z, output_s / 4).with(T, output_s / 2).with(TW, output_s / 2);
}

/// A schedule of the table of the pipeline. later < 0: as much as the algorithm wants.
inline Schedule cut(std::string_view name, const VocabularyAlgorithm& algorithm, int ranks, int microbatches,
                    const Durations& durations, int later = -1, bool input = true) {
  const PipelineSchedule& made = pipeline_schedule(name);
  if (later < 0) later = algorithm.later(made.stages_per_rank);
  const Schedule plain = made.make({ranks, made.stages_per_rank, microbatches, durations, later});
  return add_vocabulary(plain, algorithm, durations, input);
}

}  // namespace orthant

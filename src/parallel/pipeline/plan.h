// Planning of pipeline parallelism: the table of published schedules by the names that run files use. Each is a
// function that returns a Schedule of computations only; add_messages() completes it for the runtime.
#pragma once

#include <span>
#include <string_view>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// Arguments of the schedule generators. Each generator reads only the fields that it needs.
struct PipelineShape {
  int ranks = 1, stages_per_rank = 1, microbatches = 1;
  Durations durations = Durations::of(1, 1, 1);  // v_half and v_min place W into the gaps that these durations leave
  /// Extra warm-up forwards of one stage on every rank before its first backward. Activations grow by the same number.
  /// gpipe does not need them, and dual_pipe_v cannot place them: both ignore this field.
  int extra_warmup_forwards = 0;
};

/// A published schedule and its name in run files.
struct PipelineSchedule {
  std::string_view name;
  std::string_view meaning;
  int stages_per_rank;  // default number of stages per rank
  bool any_stages;      // whether other numbers of stages per rank are allowed
  bool uses_durations;  // whether the order of its passes depends on their durations
  /// Throws LogicError if ranks or microbatches are below 1, or if `extra_warmup_forwards` is negative.
  Schedule (*make)(const PipelineShape& shape);
};

/// All schedules.
std::span<const PipelineSchedule> pipeline_schedules();
/// The schedule with this name. Throws LogicError for an unknown name.
const PipelineSchedule& pipeline_schedule(std::string_view name);

}  // namespace orthant

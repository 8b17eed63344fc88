// Pipeline parallelism, the plan: stages of layers on ranks, and the published orders in which ranks do microbatches'
// passes. Each schedule is a function to a Schedule of computations alone; add_messages() makes it one that can run.
#pragma once

#include <span>
#include <string_view>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// What a schedule is made for; each looks at what it has a choice in.
struct PipelineShape {
  int ranks = 1, stages_per_rank = 1, microbatches = 1;
  Durations durations = Durations::of(1, 1, 1);  // W stand where these leave room
  /// Every rank does as many forwards of one stage more before its first backward, and keeps as much more. gpipe has no
  /// need of it, and dual_pipe_v no room.
  int later = 0;
};

/// A schedule under the name that it has in a run file.
struct PipelineSchedule {
  std::string_view name;
  std::string_view meaning;
  int stages_per_rank;  // that it wants
  bool any_stages;      // takes other numbers too
  /// LogicError without ranks or microbatches, or where `later` is negative.
  Schedule (*make)(const PipelineShape& shape);
};

std::span<const PipelineSchedule> pipeline_schedules();
/// LogicError for a name that is none.
const PipelineSchedule& pipeline_schedule(std::string_view name);

}  // namespace orthant

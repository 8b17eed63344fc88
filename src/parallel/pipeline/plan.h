// Pipeline parallelism, the plan: stages of layers on ranks, and the published orders in which ranks do microbatches'
// passes. Each schedule is a function to a Schedule of computations alone; add_messages() makes it one that can run.
#pragma once

#include <span>
#include <string_view>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A schedule under the name that it has in a run file.
struct PipelineSchedule {
  std::string_view name;
  std::string_view meaning;
  int stages_per_rank;  // that it wants
  bool any_stages;      // takes more than that too
  Schedule (*generate)(int ranks, int stages_per_rank, int microbatches, const Durations& durations, int later);

  /// `later`: every rank does as many forwards of one stage more before its first backward, and keeps as much more.
  /// gpipe has no need of it, and dual_pipe_v no room.
  Schedule make(int ranks, int stages, int microbatches, const Durations& durations, int later = 0) const {
    return generate(ranks, stages, microbatches, durations, later);
  }
};

std::span<const PipelineSchedule> pipeline_schedules();
/// LogicError for a name that is none.
const PipelineSchedule& pipeline_schedule(std::string_view name);

}  // namespace orthant

// All pipeline schedules by name, for tests of laws that hold for each of them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "parallel/pipeline/dual_pipe_v_plan.h"
#include "parallel/pipeline/gpipe_plan.h"
#include "parallel/pipeline/interleaved_plan.h"
#include "parallel/pipeline/one_f_one_b_plan.h"
#include "parallel/pipeline/plan.h"
#include "parallel/pipeline/v_schedules_plan.h"
#include "parallel/pipeline/zero_bubble_plan.h"
#include "schedule/bubbles.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A schedule and its name, such as "zb_v of 2" with two stages per rank.
struct Made {
  std::string name;
  Schedule schedule;
};
/// Every schedule of the table with its own number of stages per rank. Schedules for any number of stages also occur
/// with three stages per rank.
inline std::vector<Made> every_schedule(int ranks, int microbatches) {
  const Durations equal = Durations::of(1, 1, 1);
  std::vector<Made> out;
  for (const PipelineSchedule& each : pipeline_schedules())
    for (int stages : {each.stages_per_rank, 3})
      if (stages == each.stages_per_rank || each.any_stages)
        out.push_back({std::string(each.name) + " of " + std::to_string(stages),
                       each.make({ranks, stages, microbatches, equal})});
  return out;
}

}  // namespace orthant

// What the papers measure of a schedule, and all schedules to measure.
#pragma once

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "parallel/pipeline/dual_pipe_v_plan.h"
#include "parallel/pipeline/gpipe_plan.h"
#include "parallel/pipeline/interleaved_plan.h"
#include "parallel/pipeline/one_f_one_b_plan.h"
#include "parallel/pipeline/plan.h"
#include "parallel/pipeline/v_schedules_plan.h"
#include "parallel/pipeline/zero_bubble_plan.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// End of the last computation anywhere, less what the busiest rank computes.
inline double makespan_bubble(const Timeline& timeline) {
  return timeline.makespan_s - *std::max_element(timeline.busy_s.begin(), timeline.busy_s.end());
}

/// The most that a rank idles between its first and its last computation.
inline double own_bubble(const Timeline& timeline) {
  const size_t ranks = timeline.busy_s.size();
  std::vector<double> first(ranks, std::numeric_limits<double>::infinity()), last(ranks, 0);
  for (const Span& span : timeline.spans) {
    if (span.lane != Lane::compute) continue;
    const auto rank = static_cast<size_t>(span.rank);
    first[rank] = std::min(first[rank], span.start_s);
    last[rank] = std::max(last[rank], span.end_s);
  }
  double most = 0;
  for (size_t rank = 0; rank < ranks; ++rank) most = std::max(most, last[rank] - first[rank] - timeline.busy_s[rank]);
  return most;
}

/// Every schedule of the table, with the stages a rank that it wants and, where it takes more, with three.
struct Made {
  std::string name;
  Schedule schedule;
};
inline std::vector<Made> every_schedule(int ranks, int microbatches) {
  const Durations equal = Durations::of(1, 1, 1);
  std::vector<Made> out;
  for (const PipelineSchedule& each : pipeline_schedules())
    for (int stages : {each.stages_per_rank, 3})
      if (stages == each.stages_per_rank || each.any_stages)
        out.push_back({std::string(each.name) + " of " + std::to_string(stages),
                       each.make(ranks, stages, microbatches, equal)});
  return out;
}

}  // namespace orthant

// Repeats the rows, and measures the time between the ends of two simulated steps.
#include "schedule/steps.h"

#include <algorithm>

#include "base/errors.h"

namespace orthant {

Schedule repeat_steps(const Schedule& schedule, int times) {
  Schedule out{.rows = std::vector<std::vector<Action>>(schedule.rows.size()), .stage_owner = schedule.stage_owner};
  const int microbatches = microbatch_count(schedule);
  for (size_t rank = 0; rank < out.rows.size(); ++rank) {
    for (int step = 0; step < times; ++step) {
      for (Action action : schedule.rows[rank]) {
        if (microbatch_of(action) >= 0) action.microbatch += step * microbatches;
        out.rows[rank].push_back(action);
      }
    }
  }
  return out;
}

double step_interval(const Schedule& schedule, const Durations& durations) {
  constexpr int kSteps = 3;  // the first begins with all ranks idle; from the second on, steps are equally long
  ORTHANT_CHECK(durations.own.empty());
  for (const auto& row : schedule.rows) ORTHANT_CHECK(std::ranges::count(row, ActionKind::STEP, &Action::kind) == 1);
  Durations of_steps = durations;
  for (int step = 1; step < kSteps; ++step) {
    of_steps.microbatch_scale.insert(of_steps.microbatch_scale.end(), durations.microbatch_scale.begin(),
                                     durations.microbatch_scale.end());
  }
  const Timeline timeline = simulate(repeat_steps(schedule, kSteps), of_steps);
  std::vector<double> ends(kSteps, 0);
  size_t first = 0;
  for (const auto& row : schedule.rows) {
    for (size_t i = 0; i < row.size() * kSteps; ++i) {
      double& end = ends[i / row.size()];
      end = std::max(end, timeline.spans[first + i].end);
    }
    first += row.size() * kSteps;
  }
  return ends[kSteps - 1] - ends[kSteps - 2];
}

}  // namespace orthant

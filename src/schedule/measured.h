// Measured training steps: the measured Timeline of a step, and the durations in it as input for simulate().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

/// A measured optimizer step with the schedule that it carried out.
struct MeasuredStep {
  int64_t step = 0;
  double clock_error_s = 0;  // upper bound of the error of any rank's clock against the first rank's, after correction
  double simulated_s = 0;    // makespan that simulate() gives for the measured durations
  Schedule schedule;
  Timeline timeline;
};

/// Builds the Timeline of measured rows. `rows` has start and end of each Action in seconds, by one common clock; the
/// Timeline begins at 0 with the earliest start. The times of a message are those of the call that starts it.
Timeline measured_timeline(const Schedule& schedule, const std::vector<std::vector<std::pair<double, double>>>& rows);

/// The measured duration of each Action. Messages take no time here (link_time = 0). So the cost of communication is
/// the makespan of the Timeline minus that of simulate() with these durations.
Durations own_durations(const Timeline& timeline);
/// The mean measured duration of each kind on each stage.
Durations mean_durations(const Timeline& timeline);

/// Writes the step as a Chrome trace (trace.h).
std::string to_json(const MeasuredStep& measured);
/// Parses the output of to_json(). `source` names the origin of the text in error messages. Throws DataError for any
/// other text.
MeasuredStep parse_measured_step(std::string_view text, const std::string& source);

}  // namespace orthant

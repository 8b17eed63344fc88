// A step as it was carried out: the Timeline that was measured, and what simulate() says of the durations in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace orthant {

struct MeasuredStep {
  int64_t step = 0;
  double clock_error_s = 0;  // at most so far is any rank's clock from the first one's
  double simulated_s = 0;    // what it takes by its own durations
  Schedule schedule;
  Timeline timeline;
};

/// The Timeline of rows that were carried out: start and end of each Action by one clock, in seconds; it begins at 0
/// with the first of them. A message's are those of starting it.
Timeline measured_timeline(const Schedule& schedule, const std::vector<std::vector<std::pair<double, double>>>& rows);

/// What each Action took. A message's way is free (link_s): what it costs is the difference between the Timeline and
/// what simulate() makes of these.
Durations own_durations(const Timeline& timeline);
/// Of each kind on each stage the mean of that.
Durations mean_durations(const Timeline& timeline);

/// As a Chrome trace (trace.h), and back. DataError names the source and what it is about.
std::string to_json(const MeasuredStep& measured);
MeasuredStep parse_measured_step(std::string_view text, const std::string& source);

}  // namespace orthant

// How long ranks idle, in the two ways in which papers count it; Timeline::bubble is the share of all ranks' time.
#pragma once

#include "schedule/simulate.h"

namespace orthant {

/// The step's end less what the busiest rank computes.
double makespan_bubble(const Timeline& timeline);

/// The most that a rank idles between its first and its last computation: edges that lean count for nothing.
double own_bubble(const Timeline& timeline);

}  // namespace orthant

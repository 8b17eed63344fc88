// How long ranks idle, in the ways in which papers count it.
#pragma once

#include "schedule/simulate.h"

namespace orthant {

/// Timeline::bubble: of all ranks' time the share in which they compute nothing.
double idle_share(const Timeline& timeline);

/// The step's end less what the busiest rank computes.
double makespan_bubble(const Timeline& timeline);

/// The most that a rank idles between its first and its last computation: what ranks idle before their first and after
/// their last is not counted.
double own_bubble(const Timeline& timeline);

}  // namespace orthant

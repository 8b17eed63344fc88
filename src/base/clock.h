// Clock: the monotonic clock for all durations. Adjustments of the system time do not affect it.
#pragma once

#include <chrono>

namespace orthant {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
inline double seconds_since(Clock::time_point then) { return seconds_between(then, Clock::now()); }

}  // namespace orthant

// Clock: the time that passes, whatever the wall shows.
#pragma once

#include <chrono>

namespace orthant {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}
inline double seconds_since(Clock::time_point then) { return seconds_between(then, Clock::now()); }

}  // namespace orthant

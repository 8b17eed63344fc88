// Sleeps in place of computations, for benchmarks of schedules with more ranks than cores.
#pragma once

#include <thread>

#include "base/clock.h"
#include "benchmarks/ranks.h"

namespace orthant {

/// Sleeps for a given time. The constructor measures by how much a sleep usually exceeds the requested time: the median
/// over 21 sleeps of 5 ms. Every later sleep is requested shorter by this time.
class Nap {
 public:
  Nap() {
    std::vector<double> late_s;
    for (int i = 0; i < 21; ++i) {
      constexpr std::chrono::milliseconds kAsked(5);
      const auto start = Clock::now();
      std::this_thread::sleep_until(start + kAsked);
      late_s.push_back(seconds_since(start + kAsked));
    }
    late_s_ = quantile(late_s, 0.5);
  }
  void operator()(double seconds) const {
    const std::chrono::duration<double> asked(std::max(0.0, seconds - late_s_));
    std::this_thread::sleep_until(Clock::now() + std::chrono::duration_cast<Clock::duration>(asked));
  }

 private:
  double late_s_ = 0;
};

}  // namespace orthant

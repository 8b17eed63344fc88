// A wait for other ranks with a time limit, which the user can see.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "base/clock.h"

namespace orthant {

/// Measures a wait of at most timeout_s. After 2 s, is_over() reports the wait once on stderr, unless `awaited` is
/// empty.
class Wait {
 public:
  Wait(double timeout_s, std::string awaited) : timeout_s_(timeout_s), awaited_(std::move(awaited)) {}

  bool is_over() {
    constexpr double kQuiet_s = 2;
    const double waited_s = seconds_since(start_);
    if (waited_s >= kQuiet_s && !awaited_.empty()) {
      fmt::print(stderr, "waiting for {}, for at most {:.0f} s\n", std::exchange(awaited_, ""), timeout_s_);
    }
    return waited_s >= timeout_s_;
  }

 private:
  const double timeout_s_;
  std::string awaited_;  // empty after the report
  const Clock::time_point start_ = Clock::now();
};

}  // namespace orthant

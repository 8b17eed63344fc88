// Waits for other ranks with a time limit.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "launch/store.h"

namespace orthant {

/// Measures a wait without the times in which this process was suspended, because the other ranks were suspended with
/// it. A longer gap than longest_gap_s between two calls of seconds() is a suspension.
class RunningTime {
 public:
  explicit RunningTime(double longest_gap_s) : longest_gap_s_(longest_gap_s) {}

  double seconds() {
    const auto now = Clock::now();
    seconds_ += std::min(seconds_between(std::exchange(last_, now), now), longest_gap_s_);
    return seconds_;
  }

 private:
  const double longest_gap_s_;
  Clock::time_point last_ = Clock::now();
  double seconds_ = 0;
};

/// A wait of at most timeout_s, which the user can see. After 2 s, is_over() reports the wait once on stderr, unless
/// `awaited` is empty.
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

/// How await_key() waits. By default, without a limit.
struct KeyWait {
  double timeout_s = std::numeric_limits<double>::infinity();
  /// The request is repeated after 0.5 s, and then at intervals that double up to this one.
  double longest_piece_s = 8;
  /// Called whenever the request is repeated. If it returns true, the wait is over. It may throw.
  std::function<bool()> is_over = {};
};

/// Waits until the key exists and returns its value, or nothing once the wait is over. Throws CommError if the store is
/// gone.
std::optional<std::string> await_key(const Store& store, const std::string& key, const KeyWait& wait);

}  // namespace orthant

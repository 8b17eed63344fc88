// A bar for jobs over a known number of bytes: redrawn in place on a terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/progress.h"

namespace orthant {

struct BarState {
  std::string label;
  int64_t bytes_done = 0, bytes_total = 0;
  int64_t tokens = 0;  // -1: not counted, not shown
  double elapsed_s = 0;
  double bytes_per_s = 0;  // 0: not known yet
};

/// "tokenizing:  76%|#######   | 1.3 MiB/1.7 MiB, 512k tokens [12s<4s, 110.2 KiB/s]"; blocks by eighths where the style
/// allows unicode.
std::string bar_line(const BarState& state, const TerminalStyle& style);

/// Draws to stderr: at most ten times a second on a terminal, every ten seconds otherwise, and once at the end. The
/// speed is a moving average, 0.3 of it the newest interval.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  void update(int64_t bytes_done, int64_t bytes_total, int64_t tokens);
  void finish();

 private:
  void draw(bool last);

  BarState state_;
  TerminalStyle style_;
  bool is_terminal_;
  std::chrono::steady_clock::time_point start_, drawn_;
  int64_t bytes_drawn_ = 0;
  size_t width_drawn_ = 0;
};

}  // namespace orthant

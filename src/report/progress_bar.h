// A progress bar for jobs of known size, in bytes or another unit. A terminal shows one line that is redrawn; other
// outputs get a new line every ten seconds.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "report/progress.h"

namespace orthant {

struct BarState {
  std::string label;
  int64_t done = 0, total = 0;
  std::string unit = {};  // unit of `done` and `total`, such as "steps"; empty: bytes
  int64_t tokens = -1;    // -1: not counted, not shown
  double elapsed_s = 0;
  double per_s = 0;  // 0: not known yet
};

/// Formats a line such as "tokenizing:  76%|#######   | 1.3 MiB/1.7 MiB, 512k tokens [12s<4s, 110.2 KiB/s]". The bar
/// has eighths of blocks if the style allows unicode. It is omitted if the line would not fit the style's columns.
std::string bar_line(const BarState& state, const TerminalStyle& style);

/// Draws to stderr at most ten times per second on a terminal, every ten seconds elsewhere, and once at the end. The
/// speed is a moving average with weight 0.3 for the newest interval.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label, std::string unit = {});
  void update(int64_t done, int64_t total, int64_t tokens = -1);
  void finish();

 private:
  void draw(bool last);

  BarState state_;
  TerminalStyle style_;
  bool is_terminal_;
  Clock::time_point start_, drawn_;
  int64_t done_drawn_ = 0;
  size_t width_drawn_ = 0;
};

}  // namespace orthant

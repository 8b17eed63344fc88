#include "report/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/text.h"

namespace orthant {
namespace {

constexpr int64_t kCells = 10;

std::string cells(double share, bool unicode) {
  constexpr const char* kEighths[] = {"", "\u258f", "\u258e", "\u258d", "\u258c", "\u258b", "\u258a", "\u2589"};
  const auto eighths = static_cast<int64_t>(share * kCells * 8);
  const int64_t whole = eighths / 8, part = unicode ? eighths % 8 : 0;
  std::string bar;
  for (int64_t i = 0; i < whole; ++i) bar += unicode ? "\u2588" : "#";
  bar += kEighths[part];
  return bar + std::string(static_cast<size_t>(kCells - whole - (part > 0 ? 1 : 0)), ' ');
}

}  // namespace

std::string bar_line(const BarState& state, const TerminalStyle& style) {
  const auto done = static_cast<double>(state.done), total = static_cast<double>(state.total);
  const double share = std::clamp(done / std::max(total, 1.0), 0.0, 1.0);
  const bool known = state.per_s > 0, bytes = state.unit.empty();
  const std::string left = known ? short_duration((total - done) / state.per_s) : "?";
  const std::string speed = !known  ? "?"
                            : bytes ? format_bytes(state.per_s) + "/s"
                                    : fmt::format("{:.3g} {}/s", state.per_s, state.unit);
  const std::string amount = bytes ? format_bytes(done) + "/" + format_bytes(total)
                                   : fmt::format("{}/{} {}", state.done, state.total, state.unit);
  const std::string tokens =
      state.tokens < 0 ? "" : fmt::format(", {} tokens", format_count(static_cast<double>(state.tokens)));
  const std::string head = fmt::format("{}: {:3.0f}%", state.label, share * 100);
  const std::string tail =
      fmt::format(" {}{} [{}<{}, {}]", amount, tokens, short_duration(state.elapsed_s), left, speed);
  const bool fits = head.size() + kCells + 2 + tail.size() < static_cast<size_t>(style.columns);
  return head + (fits ? "|" + cells(share, style.unicode) + "|" : "") + tail;
}

ProgressBar::ProgressBar(std::string label, std::string unit)
    : style_(terminal_style(STDERR_FILENO)),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      drawn_(start_) {
  state_.label = std::move(label);
  state_.unit = std::move(unit);
}

void ProgressBar::update(int64_t done, int64_t total, int64_t tokens) {
  constexpr double kTerminalInterval_s = 0.1, kPlainInterval_s = 10;
  state_.done = done;
  state_.total = total;
  state_.tokens = tokens;
  const double since_s = seconds_since(drawn_);
  if (since_s >= (is_terminal_ ? kTerminalInterval_s : kPlainInterval_s)) draw(false);
}

void ProgressBar::finish() { draw(true); }

void ProgressBar::draw(bool last) {
  constexpr double kNewest = 0.3;
  const auto now = Clock::now();
  state_.elapsed_s = seconds_between(start_, now);
  const double since_s = seconds_between(drawn_, now);
  const double newest = since_s > 0 ? static_cast<double>(state_.done - done_drawn_) / since_s : 0;
  state_.per_s = state_.per_s > 0 ? kNewest * newest + (1 - kNewest) * state_.per_s : newest;
  if (last && state_.elapsed_s > 0) state_.per_s = static_cast<double>(state_.done) / state_.elapsed_s;
  drawn_ = now;
  done_drawn_ = state_.done;
  const std::string line = bar_line(state_, style_);
  const size_t padding = width_drawn_ > line.size() ? width_drawn_ - line.size() : 0;
  width_drawn_ = line.size();
  const char* end = is_terminal_ && !last ? "" : "\n";
  fmt::print(stderr, "{}{}{}{}", is_terminal_ ? "\r" : "", line, is_terminal_ ? std::string(padding, ' ') : "", end);
  std::fflush(stderr);
}

}  // namespace orthant

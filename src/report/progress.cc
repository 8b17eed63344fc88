// Formats the lines of steps and validations, with numbers that fit a fixed number of characters.
#include "report/progress.h"

#include "base/text.h"

#include <fmt/format.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

namespace orthant {
namespace {

enum Color { kPlain = 0, kDim = 2, kGreen = 32, kYellow = 33, kBlue = 34, kMagenta = 35, kCyan = 36 };

std::string paint(std::string_view text, Color color, const TerminalStyle& style) {
  if (!style.color || color == kPlain) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", static_cast<int>(color), text);
}

// Formats a value in at most `width` characters, with the largest number of decimals that fits. Uses a power of ten if
// not even the integer fits, or if only zeros would show.
std::string fit(double value, size_t width, int most_decimals) {
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const bool vanishes = value != 0 && std::abs(value) < std::pow(10.0, -most_decimals);
  for (int decimals = most_decimals; decimals >= 0 && !vanishes; --decimals) {
    if (auto text = fmt::format("{:.{}f}", value, decimals); text.size() <= width) return text;
  }
  const auto power = [&](int decimals) {
    const std::string text = fmt::format("{:.{}e}", value, decimals);  // "6.1e-04"
    const size_t e = text.find('e');
    return fmt::format("{}e{}", text.substr(0, e), std::stoi(text.substr(e + 1)));
  };
  const std::string text = power(1);
  return text.size() <= width ? text : power(0);
}

// At most four characters: "999", "7.8k", "12k", "123k".
std::string short_count(double count) {
  if (!std::isfinite(count)) return "-";
  if (count < 999.5) return fmt::format("{:.0f}", count);
  for (const char unit : {'k', 'M', 'G', 'T'}) {
    count /= 1000;
    if (count < 9.95) return fmt::format("{:.1f}{}", count, unit);
    if (count < 999.5) return fmt::format("{:.0f}{}", count, unit);
  }
  return ">1P";
}

// At most four characters, in MiB or GiB.
std::string short_memory(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20), gib = mib / 1024;
  if (bytes <= 0) return "-";
  if (mib < 999.5) return fmt::format("{:.0f}M", mib);
  return gib < 9.95 ? fmt::format("{:.1f}G", gib) : fmt::format("{:.0f}G", gib);
}

// At most five characters.
std::string short_step_time(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 0.00995) return fmt::format("{:.1f}ms", seconds * 1000);
  if (seconds < 0.9995) return fmt::format("{:.0f}ms", seconds * 1000);
  return seconds < 99.95 ? fmt::format("{:.1f}s", seconds) : fmt::format("{:.0f}s", seconds);
}

// At most four characters.
std::string percent(double fraction) { return std::isfinite(fraction) ? fmt::format("{:.0f}%", 100 * fraction) : "-"; }

std::string step_of(std::string_view word, int64_t step, int64_t total_steps) {
  if (total_steps <= 9999) return fmt::format("{:<5}{:>5}/{}", word, step, total_steps);
  return fmt::format("{:<5}{:>{}}", word, step, fmt::formatted_size("{}", total_steps) + 1);
}

std::string field(std::string_view label, const std::string& value, int width, Color color,
                  const TerminalStyle& style) {
  return "  " + paint(label, kDim, style) + paint(fmt::format("{:>{}}", value, width), color, style);
}

}  // namespace

TerminalStyle choose_style(bool is_terminal, const std::function<const char*(const char*)>& variable) {
  const auto text = [&](const char* name) { return std::string(variable(name) ? variable(name) : ""); };
  const std::string force = text("CLICOLOR_FORCE");
  const bool forced = !force.empty() && force != "0";
  const bool allowed = is_terminal && text("NO_COLOR").empty() && text("TERM") != "dumb";
  std::string locale = text("LC_ALL");
  if (locale.empty()) locale = text("LC_CTYPE");
  if (locale.empty()) locale = text("LANG");
  locale = to_lower(locale);
  const bool utf8 = locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  return {.color = forced || allowed, .unicode = utf8};
}

TerminalStyle terminal_style(int file_descriptor) {
  auto style = choose_style(::isatty(file_descriptor) == 1, [](const char* name) { return std::getenv(name); });
  winsize size{};
  if (::ioctl(file_descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) style.columns = size.ws_col;
  return style;
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "-";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  const int64_t minutes = s / 60, hours = s / 3600, days = s / 86400;
  if (s < 60) return fmt::format("{}s", s);
  if (minutes < 10) return fmt::format("{}m{:02}", minutes, s % 60);
  if (minutes < 60) return fmt::format("{}m", minutes);
  if (hours < 10) return fmt::format("{}h{:02}", hours, minutes % 60);
  if (hours < 48) return fmt::format("{}h", hours);
  return days < 10 ? fmt::format("{}d{:02}", days, hours % 24) : fmt::format("{}d", std::min<int64_t>(days, 999));
}

double median(std::span<const double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> sorted(values.begin(), values.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  if (sorted.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(sorted.begin(), middle)) / 2;
}

double eta_seconds(std::span<const double> step_seconds, int64_t steps_left) {
  const size_t recent = std::min<size_t>(step_seconds.size(), 50);
  return median(step_seconds.last(recent)) * static_cast<double>(steps_left);
}

std::string step_line(const StepMetrics& m, int64_t total_steps, double eta_s, const TerminalStyle& style) {
  enum { kStep, kLoss, kNorm, kRate, kSpeed, kTime, kComm, kMemory, kEta, kFields };
  std::array<std::string, kFields> fields;
  // Colors take no columns, so the plain line decides which fields fit.
  const auto draw = [&](const TerminalStyle& as) {
    fields[kStep] = step_of("step", m.step, total_steps);
    fields[kLoss] = std::isnan(m.loss) ? paint("  no labels  ", kDim, as)
                                       : field("loss ", fit(m.loss, 6, 4), 6, kGreen, as);
    fields[kNorm] = field("gnorm ", fit(m.grad_norm, 4, 2), 4, kYellow, as);
    fields[kRate] = field("lr ", m.lr == 0 ? "0" : fit(m.lr, 6, 0), 6, kPlain, as);
    fields[kSpeed] = "  " + paint(fmt::format("{:>4}", short_count(m.tokens_per_second)), kBlue, as) +
                     paint(" tok/s", kDim, as);
    fields[kTime] = field("", short_step_time(m.step_seconds), 5, kCyan, as);
    fields[kComm] = field("exposed comm ", percent(m.communication_seconds / m.step_seconds), 3, kMagenta, as);
    fields[kMemory] = field("mem ", short_memory(m.peak_memory_bytes), 4, kPlain, as);
    fields[kEta] = field("eta ", short_duration(eta_s), 4, kPlain, as);
  };
  draw({});
  size_t width = 0;
  for (const auto& text : fields) width += text.size();
  std::array<bool, kFields> left_out{};
  for (const auto dispensable : {kMemory, kComm, kRate, kTime, kNorm}) {
    if (width <= static_cast<size_t>(style.columns)) break;
    width -= fields[dispensable].size();
    left_out[dispensable] = true;
  }
  draw(style);
  std::string line;
  for (size_t i = 0; i < kFields; ++i) line += left_out[i] ? "" : fields[i];
  return line;
}

std::string skipped_line(const StepMetrics& m, int64_t total_steps, int64_t in_row, int64_t most_in_row,
                         const TerminalStyle& style) {
  const auto text = [](double value) { return std::isnan(value) ? "nan" : fit(value, 6, 4); };
  return step_of("skip", m.step, total_steps) + field("loss ", text(m.loss), 6, kYellow, style) +
         field("gnorm ", text(m.grad_norm), 6, kYellow, style) +
         fmt::format("  update left out; {} of at most {} in a row", in_row, most_in_row);
}

std::string validation_line(const ValidationMetrics& m, int64_t total_steps, const TerminalStyle& style) {
  std::string line =
      step_of("valid", m.step, total_steps) + field("loss ", fit(m.validation_loss, 6, 4), 6, kGreen, style);
  if (!std::isnan(m.bits_per_byte)) line += field("bits/byte ", fit(m.bits_per_byte, 5, 3), 5, kGreen, style);
  for (const SetMetrics& set : m.sets) {
    line += field(visible_text(set.name) + " ", fit(set.validation_loss, 6, 4), 6, kGreen, style);
  }
  return line;
}

}  // namespace orthant

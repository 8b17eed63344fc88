// The banner and the summary of a run, drawn as boxes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/terminal_text.h"
#include "base/text.h"
#include "report/progress.h"

namespace orthant {
namespace {

constexpr size_t kLabelColumns = 12, kMinColumns = 40, kMaxColumns = 100;

struct Row {
  std::string label;
  std::string value;
};

// Number of terminal columns. Continuation bytes of a UTF-8 character take none.
size_t columns(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Breaks the text at spaces into lines of at max_columns `width` columns. A longer word, such as a path, stays in one
// piece.
std::vector<std::string> wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (const auto& word : split(text, ' ')) {
    auto& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (columns(line) + 1 + columns(word) <= width) {
      line += ' ' + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

std::string repeat(std::string_view piece, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += piece;
  return out;
}

std::string bold(const std::string& text, const TerminalStyle& style) {
  return style.color ? "\x1b[1m" + text + "\x1b[0m" : text;
}
std::string dim(const std::string& text, const TerminalStyle& style) {
  return style.color ? "\x1b[2m" + text + "\x1b[0m" : text;
}

bool has_value(double value) { return std::isfinite(value) && value != 0; }

struct Pieces {
  std::string_view top_left, top_right, bottom_left, bottom_right, across, down;
};
constexpr Pieces kUnicodePieces = {"\u256d", "\u256e", "\u2570", "\u256f", "\u2500", "\u2502"};
constexpr Pieces kAsciiPieces = {"+", "+", "+", "+", "-", "|"};

std::string box(const std::string& title, const std::vector<Row>& rows, const TerminalStyle& style) {
  const Pieces& piece = style.unicode ? kUnicodePieces : kAsciiPieces;
  constexpr size_t kFrame = 6;  // two vertical bars, and two spaces next to each
  const size_t max_columns = std::clamp<size_t>(static_cast<size_t>(style.columns), kMinColumns, kMaxColumns);
  std::vector<Row> lines;
  size_t width = std::min<size_t>(64, max_columns - kFrame);
  for (const auto& row : rows) {
    std::string label = row.label;
    for (const auto& value : wrap(row.value, max_columns - kFrame - kLabelColumns)) {
      lines.push_back({std::exchange(label, ""), value});
      width = std::max(width, kLabelColumns + columns(value));
    }
  }
  std::string out = fmt::format("{}{} {} {}{}\n", piece.top_left, piece.across, bold(title, style),
                                repeat(piece.across, width + 1 - columns(title)), piece.top_right);
  for (const auto& [label, value] : lines) {
    out += fmt::format("{}  {}{}{}  {}\n", piece.down, dim(fmt::format("{:<{}}", label, kLabelColumns), style), value,
                       repeat(" ", width - kLabelColumns - columns(value)), piece.down);
  }
  return out + fmt::format("{}{}{}\n", piece.bottom_left, repeat(piece.across, width + 4), piece.bottom_right);
}

std::string joined_facts(const std::vector<std::string>& facts) {
  std::vector<std::string> present;
  std::copy_if(facts.begin(), facts.end(), std::back_inserter(present), [](const auto& fact) { return !fact.empty(); });
  return join(present, ", ");
}

std::string or_nothing(bool present, const std::string& text) { return present ? text : ""; }

std::vector<Row> summary_rows(const Summary& s) {
  std::vector<Row> rows;
  const auto add = [&](const char* label, bool present, const std::string& value) {
    if (present) rows.push_back({label, value});
  };
  add("stopped", !s.stopped.empty(), s.stopped);
  add("loss", has_value(s.last_loss),
      or_nothing(has_value(s.first_loss), fmt::format("first {:.4f}, ", s.first_loss)) +
          fmt::format("last {:.4f}", s.last_loss));
  add("validation", has_value(s.best_validation_loss),
      fmt::format(
          "best {:.4f}, after step {}{}", s.best_validation_loss, s.best_validation_step,
          or_nothing(has_value(s.best_bits_per_byte), fmt::format("; {:.3f} bits/byte", s.best_bits_per_byte))));
  add("speed", has_value(s.tokens_per_second_median),
      fmt::format(
          "{} tokens/s{} (medians)", format_count(s.tokens_per_second_median),
          or_nothing(has_value(s.step_seconds_median), ", " + format_seconds(s.step_seconds_median) + " a step")) +
          or_nothing(s.step_seconds_planned > 0,
                     fmt::format("; planned {} ({:+.0f}%)", format_seconds(s.step_seconds_planned),
                                 100 * (s.step_seconds_median / s.step_seconds_planned - 1))));
  add("comm", s.communication_share > 0 && s.steps > 0,
      fmt::format("exposed in {:.1f}% of rank 0's step time", 100 * s.communication_share));
  const double peak = static_cast<double>(s.peak_memory_bytes), expected = static_cast<double>(s.memory_expected_bytes);
  add("memory", peak > 0,
      format_bytes(peak) + " at peak on the largest rank" +
          or_nothing(expected > 0, fmt::format("; expected {} ({:+.0f}%)", format_bytes(expected),
                                               100 * (peak - expected) / expected)));
  add("checkpoint", !s.checkpoint.empty(), s.checkpoint);
  add("report", !s.report.empty(), s.report);
  return rows;
}

}  // namespace

std::string banner(const Banner& b, const TerminalStyle& style) {
  std::vector<Row> rows;
  const auto add = [&](const char* label, const std::vector<std::string>& facts) {
    if (auto value = joined_facts(facts); !value.empty()) rows.push_back({label, value});
  };
  add("model", {b.model});
  add("parameters", {or_nothing(b.parameters > 0, grouped(b.parameters))});
  add("data", {b.data});
  add("this run",
      {or_nothing(b.steps > 0, counted(b.steps, "step")),
       or_nothing(b.tokens > 0,
                  format_count(static_cast<double>(b.tokens)) + (b.has_padding ? " tokens with padding" : " tokens")),
       b.epochs >= 0.01 ? fmt::format("{:.2f} epochs", b.epochs) : or_nothing(b.epochs > 0, "under 0.01 epochs")});
  add("batch", {b.batch});
  add("mesh", {b.mesh, or_nothing(b.ranks > 0, counted(b.ranks, "rank"))});
  add("device", {b.device, or_nothing(b.threads_per_rank > 0, counted(b.threads_per_rank, "thread") + " a rank"),
                 or_nothing(!b.transport.empty(), b.transport + " transport")});
  add("memory", {or_nothing(b.memory_expected_bytes > 0, format_bytes(static_cast<double>(b.memory_expected_bytes)) +
                                                             " expected on the largest rank")});
  for (const std::string& warning : b.warnings) add("warning", {warning});
  add("output", {b.output_folder});
  add("resumed", {or_nothing(!b.resumed_from.empty(), "from " + b.resumed_from)});
  add("lr", {b.learning_rate});
  return box(b.version.empty() ? "orthant" : "orthant " + b.version, rows, style);
}

std::string summary(const Summary& s, const TerminalStyle& style) {
  const std::string title = s.steps > 0 ? fmt::format("{} in {}", counted(s.steps, "step"), format_seconds(s.seconds))
                                        : std::string("all steps were done already");
  std::string out = box(title, summary_rows(s), style);
  const std::array<std::pair<const char*, const std::string*>, 2> commands = {
      {{"To resume:", &s.resume_command}, {"To sample:", &s.sample_command}}};
  for (const auto& [label, command] : commands) {
    if (!command->empty()) out += fmt::format("\n{}\n  {}\n", dim(label, style), bold(*command, style));
  }
  if (const std::string sample = visible_text(s.sample_text); !trim(sample).empty()) {
    out += fmt::format("\n{}\n", dim("Sample: held-out text and the output of the model", style));
    for (const auto& line : split(trim(sample), '\n')) out += line.empty() ? "\n" : "  " + line + "\n";
  }
  return out;
}

std::string visible_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
    const bool control = (byte(i) < 0x20 && byte(i) != '\n' && byte(i) != '\t') || byte(i) == 0x7f ||
                         (length == 2 && byte(i) == 0xc2 && byte(i + 1) < 0xa0);
    if (length == 0) out += "\ufffd";
    if (length > 0 && !control) out += text.substr(i, length);
    i += std::max<size_t>(1, length);
  }
  return out;
}

}  // namespace orthant

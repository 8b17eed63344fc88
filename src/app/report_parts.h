// Pieces that the sections of a report share: cards, bars of parts, and series taken from the metrics.
#pragma once

#include "app/report_chart.h"
#include "app/report_scale.h"
#include "runtime/metrics.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// What a line is thinned to: more would not be seen.
inline constexpr size_t kMostPoints = 600;

/// One field of every step, over the step.
template <typename Value>
std::vector<Point> points_of(const std::vector<StepMetrics>& steps, Value value) {
  std::vector<Point> points;
  points.reserve(steps.size());
  for (const auto& step : steps) points.push_back({static_cast<double>(step.step), static_cast<double>(value(step))});
  return points;
}

/// One field of every step in which it is known.
template <typename Value>
std::vector<double> known_values(const std::vector<StepMetrics>& steps, Value value) {
  std::vector<double> values;
  for (const auto& step : steps) {
    if (const auto v = static_cast<double>(value(step)); std::isfinite(v)) values.push_back(v);
  }
  return values;
}

double sum(const std::vector<double>& values);

/// Where the time of all steps went, in seconds, on rank 0. communication: exposed communication (metrics.h).
struct TimeSplit {
  double total = 0, communication = 0, data = 0;
  double rest() const;
};
TimeSplit time_split(const std::vector<StepMetrics>& steps);

/// A number in a sentence: "-" when not known.
std::string show(double value, int decimals);

/// A section with its heading, a line of explanation and its body (HTML).
std::string card(std::string_view id, std::string_view title, const std::string& note, const std::string& body);
/// The sentence that stands for a piece that is not there.
std::string missing(std::string_view sentence);
/// Two drawings of the chart: one as given, and one for screens of about 400 pixels, which lists the names of the lines
/// below the chart instead of at their ends. The style sheet shows one of them. If `scrolls`, the wide one can be
/// scrolled sideways.
std::string responsive(const Chart& chart, bool scrolls);
/// Something wide that scrolls sideways on a narrow screen.
std::string scrolling(const std::string& html);

/// A part of a bar; value is its amount in words.
struct Part {
  std::string name, color, value;
  double amount = 0;
};
/// A bar of parts with their names beneath; `whole` is the amount of its full length.
std::string strip(const std::vector<Part>& parts, double whole);

/// The cards of report_curves.cc.
std::string loss_section(const Metrics& metrics);
std::string rate_section(const Metrics& metrics);
std::string norm_section(const Metrics& metrics);
std::string throughput_section(const Metrics& metrics);
std::string time_section(const Metrics& metrics);
/// Two cards: bytes and calls. expected_bytes: sent in a step by rank 0, as planned, as metrics.jsonl has them.
std::string communication_sections(const Metrics& metrics, std::optional<int64_t> expected_bytes);

}  // namespace orthant

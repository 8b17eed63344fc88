// Shared parts of the report's sections: cards, bars of parts, and series taken from the metrics.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/chart.h"
#include "report/data.h"
#include "report/metrics.h"
#include "report/scale.h"

namespace orthant {

/// Maximum number of points of a line; more would not be visible.
inline constexpr size_t kMostPoints = 600;

/// One field of every step, as points over the step number.
template <typename Value>
std::vector<Point> points_of(const std::vector<StepMetrics>& steps, Value value) {
  std::vector<Point> points;
  points.reserve(steps.size());
  for (const auto& step : steps) points.push_back({static_cast<double>(step.step), static_cast<double>(value(step))});
  return points;
}

/// The finite values of one field over all steps.
template <typename Value>
std::vector<double> known_values(const std::vector<StepMetrics>& steps, Value value) {
  std::vector<double> values;
  for (const auto& step : steps) {
    if (const auto v = static_cast<double>(value(step)); std::isfinite(v)) values.push_back(v);
  }
  return values;
}

double sum(const std::vector<double>& values);

/// Seconds of rank 0 over all steps, in total and by cause. communication: exposed communication (metrics.h).
struct TimeSplit {
  double total = 0, communication = 0, data = 0;
  double rest() const;
};
TimeSplit time_split(const std::vector<StepMetrics>& steps);

/// Formats a number with `decimals` decimals; "-" if it is not finite.
std::string show(double value, int decimals);

/// The validation with the lowest known loss; null without one.
const ValidationMetrics* best_validation(const Metrics& metrics);

/// The last component of the folder's path: "a" for "runs/a/".
std::string run_name(const std::string& folder);

/// A complete page: head, style sheet, body and script. title: already escaped.
std::string html_page(const std::string& title, const std::string& body);
/// A section as HTML: heading, one line of explanation and body.
std::string card(std::string_view id, std::string_view title, const std::string& note, const std::string& body);
/// The sentence that replaces a missing part.
std::string missing(std::string_view sentence);
/// Two drawings of the chart: one as given, and one for screens of about 400 pixels, which lists the names of the lines
/// below the chart instead of at their ends. Chart::lists_names does so for both. The style sheet shows one of them. If
/// `scrolls`, the wide one can be scrolled sideways.
std::string responsive(const Chart& chart, bool scrolls);
/// Two cards side by side, or one below the other on a narrow screen.
std::string pair_of(const std::string& cards);
/// Wraps wide content so that it scrolls horizontally on a narrow screen.
std::string scrolling(const std::string& html);

/// A part of a bar; `value` is its amount as text.
struct Part {
  std::string name, color, value;
  double amount = 0;
};
/// A bar of parts with their names below it; `whole` is the amount that fills its full length.
std::string strip(const std::vector<Part>& parts, double whole);

/// The cards implemented in curves.cc.
std::string loss_section(const Metrics& metrics);
std::string rate_section(const Metrics& metrics);
std::string norm_section(const Metrics& metrics);
std::string throughput_section(const Metrics& metrics);
std::string time_section(const Metrics& metrics, const std::optional<PlannedTime>& planned);
/// Two cards: bytes sent and received, and calls. expected_sent and expected_received: planned bytes per step of rank
/// 0, counted as in metrics.jsonl.
std::string communication_sections(const Metrics& metrics, std::optional<int64_t> expected_sent,
                                   std::optional<int64_t> expected_received);

}  // namespace orthant

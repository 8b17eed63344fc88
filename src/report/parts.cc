#include "report/parts.h"

#include <fmt/format.h>

#include <algorithm>

namespace orthant {

double sum(const std::vector<double>& values) {
  double total = 0;
  for (const double value : values) total += value;
  return total;
}

double TimeSplit::rest() const { return std::max(0.0, total - communication - data); }

TimeSplit time_split(const std::vector<StepMetrics>& steps) {
  return {.total = sum(known_values(steps, [](const auto& m) { return m.step_seconds; })),
          .communication = sum(known_values(steps, [](const auto& m) { return m.communication_seconds; })),
          .data = sum(known_values(steps, [](const auto& m) { return m.data_seconds; }))};
}

std::string show(double value, int decimals) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, decimals) : "-";
}

std::string card(std::string_view id, std::string_view title, const std::string& note, const std::string& body) {
  return fmt::format("<section class=\"card\" id=\"{}\">\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n{}</section>\n", id,
                     title, note, body);
}

std::string scrolling(const std::string& svg) { return "<div class=\"wide\">\n" + svg + "</div>\n"; }

std::string responsive(const Chart& chart, bool scrolls) {
  constexpr size_t kNarrowPoints = kMostPoints / 3;
  Chart narrow = chart;
  narrow.width = kNarrowWidth;
  narrow.height = std::min(chart.height, 260.0);
  std::string names;
  for (Series& series : narrow.series) {
    if (!chart.stacked) series.points = thin_out(series.points, kNarrowPoints);  // stacked series need equal x values
    if (series.labeled && !series.points.empty()) {
      names += fmt::format("<li><i class=\"back-{}\"></i>{}</li>", series.color, escape(series.name));
    }
    series.labeled = false;
  }
  const std::string wide = draw_chart(chart);
  return fmt::format("<div class=\"broad\">\n{}</div>\n<div class=\"narrow\">\n{}{}</div>\n",
                     scrolls ? scrolling(wide) : wide, draw_chart(narrow),
                     names.empty() ? "" : "<ul class=\"names\">" + names + "</ul>\n");
}

std::string missing(std::string_view sentence) { return fmt::format("<p class=\"missing\">{}</p>\n", sentence); }

std::string strip(const std::vector<Part>& parts, double whole) {
  std::string bar = "<div class=\"strip\">", names = "<ul class=\"names\">";
  for (const auto& part : parts) {
    bar += fmt::format("<span class=\"back-{}\" style=\"width:{:.3f}%\"></span>", part.color,
                       whole > 0 ? 100 * part.amount / whole : 0);
    names += fmt::format("<li><i class=\"back-{}\"></i>{} <b>{}</b></li>", part.color, escape(part.name), part.value);
  }
  return bar + "</div>" + names + "</ul>\n";
}

}  // namespace orthant

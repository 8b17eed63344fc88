#include "report/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "report/page.h"

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

const ValidationMetrics* best_validation(const Metrics& metrics) {
  const ValidationMetrics* best = nullptr;
  for (const auto& one : metrics.validations) {
    if (std::isfinite(one.validation_loss) && (!best || one.validation_loss < best->validation_loss)) best = &one;
  }
  return best;
}

std::string run_name(const std::string& folder) {
  const auto path = std::filesystem::path(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename();
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n<style>\n{}</style>\n</head>\n"
      "<body>\n<main>\n{}</main>\n<div id=\"hover\" hidden></div>\n<script>\n{}</script>\n</body>\n</html>\n",
      title, report_style(), body, report_script());
}

std::string card(std::string_view id, std::string_view title, const std::string& note, const std::string& body) {
  return fmt::format("<section class=\"card\" id=\"{}\">\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n{}</section>\n", id,
                     title, note, body);
}

std::string pair_of(const std::string& cards) { return "<div class=\"pair\">\n" + cards + "</div>\n"; }

std::string scrolling(const std::string& svg) { return "<div class=\"wide\">\n" + svg + "</div>\n"; }

std::string responsive(const Chart& chart, bool scrolls) {
  constexpr size_t kNarrowPoints = kMostPoints / 3;
  Chart broad = chart, narrow = chart;
  narrow.width = kNarrowWidth;
  narrow.height = std::min(chart.height, 260.0);
  std::string names;
  for (size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    if (series.labeled && !series.points.empty()) {
      names +=
          fmt::format("<li>{}{}</li>",
                      chart.lists_names ? line_sample(series) : fmt::format("<i class=\"back-{}\"></i>", series.color),
                      escape(label_of(series)));
    }
    Series& small = narrow.series[s];
    if (!chart.stacked) small.points = thin_out(series.points, kNarrowPoints);  // stacked series need equal x values
    small.labeled = false;
    broad.series[s].labeled = series.labeled && !chart.lists_names;
  }
  if (!names.empty()) names = "<ul class=\"names\">" + names + "</ul>\n";
  const std::string wide = draw_chart(broad);
  return fmt::format("<div class=\"broad\">\n{}{}</div>\n<div class=\"narrow\">\n{}{}</div>\n",
                     scrolls ? scrolling(wide) : wide, chart.lists_names ? names : "", draw_chart(narrow), names);
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

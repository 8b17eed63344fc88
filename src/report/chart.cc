#include "report/chart.h"

#include "base/text.h"
#include "report/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace orthant {
namespace {

// The plot area in pixels, and the values at its edges.
struct Frame {
  double left, right, top, bottom;
  double x_low, x_high, y_low, y_high;

  double x(double value) const { return left + (value - x_low) / (x_high - x_low) * (right - left); }
  double y(double value) const { return bottom - (value - y_low) / (y_high - y_low) * (bottom - top); }
};

double spacing_of(const std::vector<double>& ticks) { return ticks.size() > 1 ? ticks[1] - ticks[0] : 1; }

// Adds to each series the values of all series before it.
std::vector<Series> stack(std::vector<Series> series) {
  for (size_t s = 1; s < series.size(); ++s) {
    for (size_t i = 0; i < series[s].points.size() && i < series[s - 1].points.size(); ++i) {
      series[s].points[i].y += series[s - 1].points[i].y;
    }
  }
  return series;
}

// Computes the frame. False if no value is finite.
bool find_frame(const Chart& chart, const std::vector<Series>& series, Frame& frame) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double x_low = kInfinity, x_high = -kInfinity, y_low = kInfinity, y_high = -kInfinity;
  for (const auto& one : series) {
    for (const auto& point : one.points) {
      if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
      x_low = std::min(x_low, point.x), x_high = std::max(x_high, point.x);
      y_low = std::min(y_low, point.y), y_high = std::max(y_high, point.y);
    }
  }
  if (!(x_low <= x_high)) return false;
  if (x_low == x_high) x_low -= 1, x_high += 1;
  if (chart.from_zero || chart.stacked) y_low = std::min(0.0, y_low);
  if (y_low == y_high) y_low = std::min(0.0, y_low), y_high = y_high == 0 ? 1 : std::max(0.0, y_high);
  const double margin = 0.05 * (y_high - y_low);
  y_high += margin;
  if (y_low != 0) y_low = y_low > 0 ? std::max(0.0, y_low - margin) : y_low - margin;
  const bool labeled = std::any_of(series.begin(), series.end(), [](const Series& one) { return one.labeled; });
  const bool narrow = chart.width <= kNarrowWidth;
  frame = {.left = narrow ? 46.0 : 58.0,
           .right = chart.width - (labeled ? 136 : narrow ? 12 : 30),
           .top = chart.top_axis.empty() ? 30.0 : 62.0,
           .bottom = chart.height - 30,
           .x_low = x_low,
           .x_high = x_high,
           .y_low = y_low,
           .y_high = y_high};
  return true;
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text, std::string_view css = "tick") {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", css, x, y, anchor,
                     escape(text));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view css) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", css, x1, y1, x2,
                     y2);
}

std::string draw_axes(const Chart& chart, const Frame& f) {
  std::string out;
  const auto y_ticks = nice_ticks(f.y_low, f.y_high, std::clamp(static_cast<int>((f.bottom - f.top) / 38), 3, 8));
  for (const double tick : y_ticks) {
    out += line(f.left, f.y(tick), f.right, f.y(tick), "grid");
    out += text_at(f.left - 8, f.y(tick) + 4, "end", tick_label(tick, spacing_of(y_ticks)));
  }
  const int most_x = std::clamp(static_cast<int>((f.right - f.left) / 80), 3, 12);
  auto x_ticks = nice_ticks(f.x_low, f.x_high, most_x);
  std::erase_if(x_ticks, [](double tick) { return tick != std::round(tick); });  // steps are integers
  for (const double tick : x_ticks) {
    out += line(f.x(tick), f.bottom, f.x(tick), f.bottom + 5, "axis");
    out += text_at(f.x(tick), f.bottom + 19, "middle",
                   tick >= 1e6 ? format_count(tick) : tick_label(tick, std::max(1.0, spacing_of(x_ticks))));
  }
  out += line(f.left, f.bottom, f.right, f.bottom, "axis");
  out += text_at(0, f.bottom + 19, "start", chart.x_label, "label");
  out += text_at(0, 14, "start", chart.y_label, "label");
  return out;
}

// The x at which the cumulative quantity y reaches a value, by linear interpolation.
double place_of(const std::vector<Point>& counted, double value) {
  const auto after = std::find_if(counted.begin(), counted.end(), [&](const Point& p) { return p.y >= value; });
  if (after == counted.begin() || after == counted.end()) return after == counted.end() ? counted.back().x : after->x;
  const Point &a = *(after - 1), &b = *after;
  return a.x + (b.x - a.x) * (value - a.y) / (b.y - a.y);
}

std::string draw_top_axis(const Chart& chart, const Frame& f) {
  if (chart.top_axis.empty()) return "";
  std::string out = line(f.left, f.top, f.right, f.top, "axis");
  const double first = chart.top_axis.front().y, last = chart.top_axis.back().y;
  for (const double tick : nice_ticks(first, last, std::clamp(static_cast<int>((f.right - f.left) / 90), 3, 10))) {
    const double x = f.x(place_of(chart.top_axis, tick));
    out += line(x, f.top, x, f.top - 5, "axis");
    out += text_at(x, f.top - 10, "middle", format_count(tick));
  }
  return out + text_at(0, f.top - 10, "start", chart.top_label, "label");
}

// "M x,y L x,y ..."; unknown values interrupt the line.
std::string path_of(const std::vector<Point>& points, const Frame& f) {
  std::string out;
  bool drawing = false;
  for (const auto& point : points) {
    const bool known = std::isfinite(point.y);
    if (known) out += fmt::format("{}{:.1f},{:.1f}", drawing ? "L" : "M", f.x(point.x), f.y(point.y));
    drawing = known;
  }
  return out;
}

// The area between two lines with the same x; unknown values count as 0.
std::string area_of(const std::vector<Point>& upper, const std::vector<Point>* lower, const Frame& f) {
  std::string out = "M";
  const auto height = [&](double value) { return f.y(std::isfinite(value) ? value : 0); };
  for (const auto& point : upper) out += fmt::format("{:.1f},{:.1f}L", f.x(point.x), height(point.y));
  for (size_t i = upper.size(); i-- > 0;) {
    out += fmt::format("{:.1f},{:.1f}{}", f.x(upper[i].x), height(lower ? (*lower)[i].y : 0), i > 0 ? "L" : "Z");
  }
  return out;
}

// Attributes for the hover box: the name and the values, not stacked.
std::string hover_data(const Series& series) {
  std::string values;
  for (const auto& point : series.points) {
    if (std::isfinite(point.y)) values += fmt::format("{:g},{:.4g} ", point.x, point.y);
  }
  if (!values.empty()) values.pop_back();
  return fmt::format("data-name=\"{}\" data-values=\"{}\"", escape(series.name), values);
}

// The attributes that give a line its look.
std::string look_of(const Series& series) {
  constexpr const char* kMarks[] = {"thin", "line", "thick", "dashed", "dotted", "dots"};
  return fmt::format("class=\"{} stroke-{}\"", kMarks[static_cast<int>(series.mark)], series.color) +
         (series.stroke_width > 0 ? fmt::format(" style=\"stroke-width:{:.2g}\"", series.stroke_width) : "");
}

std::string draw_series(const Chart& chart, const std::vector<Series>& stacked, const Frame& f) {
  std::string out;
  for (size_t s = 0; s < stacked.size(); ++s) {
    const Series& one = stacked[s];
    if (one.points.empty()) continue;
    const std::string hover = hover_data(chart.series[s]);
    if (chart.stacked) {
      out += fmt::format("<path class=\"area fill-{}\" {} d=\"{}\"/>\n", one.color, hover,
                         area_of(one.points, s > 0 ? &stacked[s - 1].points : nullptr, f));
    } else if (one.mark == Mark::kDots) {
      out += fmt::format("<g class=\"dots fill-{}\" {}>", one.color, hover);
      for (const auto& point : one.points) {
        if (!std::isfinite(point.y)) continue;
        out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>", f.x(point.x), f.y(point.y));
      }
      out += "</g>\n";
    } else {
      out += fmt::format("<path {} {} d=\"{}\"/>\n", look_of(one), hover, path_of(one.points, f));
    }
  }
  return out;
}

struct EndLabel {
  double y;
  std::string color, text;
};

// Writes names next to the ends of lines, or the middle of areas, and moves them apart if they overlap.
std::string draw_end_labels(const Chart& chart, const std::vector<Series>& stacked, const Frame& f) {
  constexpr double kApart = 16;
  std::vector<EndLabel> labels;
  for (size_t s = 0; s < stacked.size(); ++s) {
    const auto& points = stacked[s].points;
    const auto last = std::find_if(points.rbegin(), points.rend(), [](const Point& p) { return std::isfinite(p.y); });
    if (last == points.rend() || !stacked[s].labeled) continue;
    double value = last->y;
    if (chart.stacked) value -= chart.series[s].points[static_cast<size_t>(points.rend() - last) - 1].y / 2;
    labels.push_back({f.y(value), stacked[s].color, label_of(stacked[s])});
  }
  std::sort(labels.begin(), labels.end(), [](const auto& a, const auto& b) { return a.y < b.y; });
  for (size_t i = 1; i < labels.size(); ++i) labels[i].y = std::max(labels[i].y, labels[i - 1].y + kApart);
  double lowest = f.bottom - 4;
  std::string out;
  for (size_t i = labels.size(); i-- > 0; lowest -= kApart) {
    labels[i].y = lowest = std::min(labels[i].y, lowest);
    out += text_at(f.right + 8, labels[i].y + 4, "start", labels[i].text, "end text-" + labels[i].color);
  }
  return out;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : visible_text(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string label_of(const Series& series) { return series.name + (series.value.empty() ? "" : " " + series.value); }

std::string line_sample(const Series& series) {
  return fmt::format("<svg class=\"sample\" viewBox=\"0 0 26 10\"><path {} d=\"M3,5H23\"/></svg>", look_of(series));
}

std::string draw_chart(const Chart& chart) {
  const std::vector<Series> series = chart.stacked ? stack(chart.series) : chart.series;
  Frame f{};
  if (!find_frame(chart, series, f)) return "<p class=\"missing\">No values were recorded.</p>\n";
  std::string out = fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"{}\" data-x-label=\"{}\" "
      "data-frame=\"{:g} {:g} {:g} {:g} {:g} {:g}\">\n",
      chart.width, chart.height, escape(chart.title), escape(chart.x_label), f.left, f.right, f.top, f.bottom, f.x_low,
      f.x_high);
  out += draw_axes(chart, f) + draw_top_axis(chart, f) + draw_series(chart, series, f);
  out += draw_end_labels(chart, series, f);
  return out + "</svg>\n";
}

}  // namespace orthant

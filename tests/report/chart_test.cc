// Charts of the report: ticks, thinning, smoothing, and lines within the frame. Negative controls: shifted and reversed
// lines are detected, and so is unbalanced markup.
#include "report/chart.h"

#include "report/scale.h"
#include "tests/report/html_balance.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <regex>

namespace orthant::report_chart_test {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct Drawn {
  std::vector<Point> points;
  int stretches = 0;  // number of connected parts of the line; 1 if it has no gap
};

Drawn path_in(const std::string& svg, const std::string& css) {
  const std::regex path("<path class=\"" + css + "[^>]* d=\"([^\"]*)\"");
  const std::regex pair("([ML])(-?[\\d.]+),(-?[\\d.]+)");
  std::smatch found;
  Drawn drawn;
  if (!std::regex_search(svg, found, path)) return drawn;
  const std::string d = found[1];
  for (std::sregex_iterator it(d.begin(), d.end(), pair), end; it != end; ++it) {
    drawn.points.push_back({std::stod((*it)[2]), std::stod((*it)[3])});
    drawn.stretches += (*it)[1] == "M";
  }
  return drawn;
}

// Whether the points run from left to right inside the frame that the SVG states in data-frame.
bool inside_frame(const std::vector<Point>& points, const std::string& svg) {
  double left, right, top, bottom;
  const size_t at = svg.find("data-frame=\"");
  if (std::sscanf(svg.c_str() + at, "data-frame=\"%lf %lf %lf %lf", &left, &right, &top, &bottom) != 4) return false;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].x < left - 0.06 || points[i].x > right + 0.06) return false;
    if (points[i].y < top - 0.06 || points[i].y > bottom + 0.06) return false;
    if (i > 0 && points[i].x < points[i - 1].x) return false;
  }
  return true;
}

TEST(ReportScale, TicksAreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 10, 6), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(nice_ticks(1.8, 5.6, 5), (std::vector<double>{2, 3, 4, 5}));
  EXPECT_TRUE(nice_ticks(1, 1, 5).empty());
  EXPECT_TRUE(nice_ticks(0, kUnknown, 5).empty());
  EXPECT_TRUE(nice_ticks(2, 1, 5).empty());
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const double size = std::pow(10.0, static_cast<double>(random() % 24) - 12);
    const double low = size * (static_cast<double>(random() % 2001) - 1000) / 100;
    const double high = low + size * static_cast<double>(1 + random() % 5000) / 100;
    const int most = 3 + static_cast<int>(random() % 10);
    const auto ticks = nice_ticks(low, high, most);
    ASSERT_LE(ticks.size(), static_cast<size_t>(most));
    ASSERT_GE(ticks.size(), 1u) << low << " " << high << " " << most;
    const double slack = 1e-8 * (high - low);
    ASSERT_GE(ticks.front(), low - slack);
    ASSERT_LE(ticks.back(), high + slack);
    if (ticks.size() < 2) continue;
    const double spacing = ticks[1] - ticks[0];
    const double digit = spacing / std::pow(10.0, std::floor(std::log10(spacing * 1.0001)));
    ASSERT_TRUE(std::abs(digit - 1) < 1e-3 || std::abs(digit - 2) < 1e-3 || std::abs(digit - 5) < 1e-3) << digit;
    ASSERT_GT(ticks.front() - low, -spacing);
    ASSERT_LT(high - ticks.back(), spacing * 1.000001) << "a tick is missing at the end";
  }
}

TEST(ReportScale, TickLabelsHaveTheDecimalsOfTheirSpacing) {
  EXPECT_EQ(tick_label(0.25, 0.05), "0.25");
  EXPECT_EQ(tick_label(0.3, 0.1), "0.3");
  EXPECT_EQ(tick_label(0.30000000000000004, 0.1), "0.3");
  EXPECT_EQ(tick_label(1200, 200), "1,200");
  EXPECT_EQ(tick_label(0, 5), "0");
  EXPECT_EQ(tick_label(2e12, 1e12), "2e+12");
}

TEST(ReportScale, ThinningKeepsTheExtremesAndTheOrder) {
  std::mt19937_64 random(2);
  std::vector<Point> points;
  for (int i = 0; i < 10007; ++i) points.push_back({static_cast<double>(i), static_cast<double>(random() % 1000)});
  points[5000].y = 99999;
  points[7000].y = -99999;
  points[3].y = kUnknown;
  const auto thin = thin_out(points, 600);
  EXPECT_LE(thin.size(), 600u);
  EXPECT_TRUE(std::is_sorted(thin.begin(), thin.end(), [](const Point& a, const Point& b) { return a.x < b.x; }));
  EXPECT_EQ(thin.front().x, 0);
  EXPECT_EQ(thin.back().x, 10006);
  EXPECT_EQ(std::count_if(thin.begin(), thin.end(), [](const Point& p) { return p.y == 99999 && p.x == 5000; }), 1);
  EXPECT_EQ(std::count_if(thin.begin(), thin.end(), [](const Point& p) { return p.y == -99999 && p.x == 7000; }), 1);
  const auto means = thin_to_means(points, 300);
  EXPECT_EQ(means.size(), 300u);
  EXPECT_EQ(means.back().x, 10006);
  EXPECT_LT(means[150].y, 99999) << "means are not extremes";
  EXPECT_EQ(thin_out(std::span(points).first(10), 600).size(), 10u);
}

TEST(ReportScale, ThinningAGapKeepsTheGap) {
  std::vector<Point> points;
  for (int i = 0; i < 1000; ++i) points.push_back({static_cast<double>(i), i < 400 || i >= 600 ? 1.0 : kUnknown});
  const auto thin = thin_out(points, 100);
  const Chart chart{.series = {{.name = "x", .points = thin}}};
  EXPECT_EQ(path_in(draw_chart(chart), "line").stretches, 2);
}

TEST(ReportScale, SmoothingNeitherLagsNorLeavesTheEnds) {
  std::vector<Point> line, zigzag;
  for (int i = 0; i < 50; ++i) line.push_back({static_cast<double>(i), 3.0 * i});
  for (int i = 0; i < 50; ++i) zigzag.push_back({static_cast<double>(i), i % 2 ? 1.0 : -1.0});
  const auto same = smooth(line, 5);
  for (size_t i = 0; i < line.size(); ++i) EXPECT_NEAR(same[i].y, line[i].y, 1e-9);
  for (size_t i = 5; i + 5 < zigzag.size(); ++i) EXPECT_NEAR(std::abs(smooth(zigzag, 5)[i].y), 1.0 / 11, 1e-12);
  line[20].y = kUnknown;
  EXPECT_EQ(smooth(line, 5).size(), 49u);
}

TEST(ReportChart, LineRunsInsideTheFrame) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    Chart chart{.from_zero = round % 2 == 0};
    Series series{.name = "loss", .mark = Mark::kThick};
    const double scale = std::pow(10.0, static_cast<double>(random() % 16) - 8);
    for (int i = 1; i <= 1 + round * 7; ++i) {
      series.points.push_back({static_cast<double>(i), scale * static_cast<double>(random() % 1000)});
    }
    chart.series.push_back(series);
    const std::string svg = draw_chart(chart);
    const Drawn drawn = path_in(svg, "thick");
    ASSERT_EQ(drawn.points.size(), series.points.size());
    ASSERT_EQ(drawn.stretches, 1);
    ASSERT_TRUE(inside_frame(drawn.points, svg)) << svg;
    ASSERT_EQ(unbalanced(svg), "");
    std::vector<Point> out_of_order = drawn.points, too_low = drawn.points;
    too_low.back().y += 1000;
    EXPECT_FALSE(inside_frame(too_low, svg));
    std::reverse(out_of_order.begin(), out_of_order.end());
    if (out_of_order.size() > 1) {
      EXPECT_FALSE(inside_frame(out_of_order, svg));
    }
  }
}

TEST(ReportChart, FallingLossFallsOnThePage) {
  Chart chart{.series = {{.name = "loss", .points = {{1, 5}, {2, 4}, {3, 2}}}}};
  const auto points = path_in(draw_chart(chart), "line").points;
  ASSERT_EQ(points.size(), 3u);
  EXPECT_LT(points[0].y, points[1].y);
  EXPECT_LT(points[1].y, points[2].y);
  EXPECT_NEAR((points[2].y - points[1].y) / (points[1].y - points[0].y), 2, 0.02);
}

TEST(ReportChart, UnknownValuesBreakTheLine) {
  Chart chart{.series = {{.name = "norm", .points = {{1, 5}, {2, kUnknown}, {3, 2}, {4, 3}}}}};
  const std::string svg = draw_chart(chart);
  EXPECT_EQ(path_in(svg, "line").stretches, 2);
  EXPECT_EQ(path_in(svg, "line").points.size(), 3u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  chart.series[0].points = {{1, kUnknown}};
  EXPECT_EQ(draw_chart(chart), "<p class=\"missing\">No values were recorded.</p>\n");
  EXPECT_EQ(draw_chart({}), "<p class=\"missing\">No values were recorded.</p>\n");
}

TEST(ReportChart, StackedAreasLieOnEachOther) {
  const Chart chart{.series = {{.name = "a", .color = "blue", .points = {{1, 1}, {2, 1}}},
                               {.name = "b", .color = "orange", .points = {{1, 2}, {2, 3}}}},
                    .stacked = true};
  const std::string svg = draw_chart(chart);
  const std::regex area("class=\"area fill-(\\w+)\"[^>]* d=\"M([^Z]*)Z\"");
  std::vector<std::string> shapes;
  for (std::sregex_iterator it(svg.begin(), svg.end(), area), end; it != end; ++it) shapes.push_back((*it)[2]);
  ASSERT_EQ(shapes.size(), 2u);
  const auto corners = [](const std::string& shape) {
    std::vector<std::string> out;
    for (size_t begin = 0; begin < shape.size();) {
      const size_t end = std::min(shape.find('L', begin), shape.size());
      out.push_back(shape.substr(begin, end - begin));
      begin = end + 1;
    }
    return out;
  };
  const auto lower = corners(shapes[0]), upper = corners(shapes[1]);
  ASSERT_EQ(lower.size(), 4u);
  ASSERT_EQ(upper.size(), 4u);
  EXPECT_EQ(upper[2], lower[1]) << "the lower edge of b is the upper edge of a";
  EXPECT_EQ(upper[3], lower[0]);
}

TEST(ReportChart, NamesAtTheEndsDoNotOverlapAndStayBesideTheFrame) {
  for (const double last : {1.0, 5.0, 9.0}) {
    Chart chart;
    for (int s = 0; s < 4; ++s) {
      chart.series.push_back({.name = fmt::format("name {}", s), .points = {{0, 9}, {1, 1}, {2, last}}});
    }
    const std::string svg = draw_chart(chart);
    const std::regex label("<text class=\"end[^>]* y=\"([\\d.]+)\"");
    std::vector<double> positions;
    for (std::sregex_iterator it(svg.begin(), svg.end(), label), end; it != end; ++it) {
      positions.push_back(std::stod((*it)[1]));
    }
    std::sort(positions.begin(), positions.end());
    ASSERT_EQ(positions.size(), 4u);
    for (size_t i = 1; i < positions.size(); ++i) EXPECT_GE(positions[i] - positions[i - 1], 15.9);
    EXPECT_GT(positions.front(), 30) << "the frame's top";
    EXPECT_LT(positions.back(), 270.1) << "the frame's bottom";
  }
}

TEST(ReportChart, TextIsEscaped) {
  EXPECT_EQ(escape("<a href=\"x\">&'\x1b</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt;");
  EXPECT_EQ(escape("\xff\u20ac"), "\ufffd\u20ac");
}

TEST(ReportChart, TheBalanceCheckerSeesDamage) {
  EXPECT_EQ(unbalanced("<p><b>x</b></p><line x=\"1\"/>"), "");
  EXPECT_EQ(unbalanced("<p><b>x</p></b>"), "unexpected </p>");
  EXPECT_EQ(unbalanced("<p>"), "open <p>");
}

}  // namespace
}  // namespace orthant::report_chart_test

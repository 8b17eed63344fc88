// Draws charts as SVG text: a frame with round ticks; lines, dots or stacked areas; names at the ends of lines. Colors
// are CSS classes that the page's style sheet defines for light and dark mode.
#pragma once

#include "report/scale.h"

#include <string>
#include <string_view>
#include <vector>

namespace orthant {

/// Escapes text for HTML and SVG: applies visible_text(), then replaces & < > and both quotes by entities.
std::string escape(std::string_view text);

enum class Mark { kThin, kLine, kThick, kDashed, kDotted, kDots };

struct Series {
  std::string name = {};       // shown at the end of the line and in the hover box
  std::string value = {};      // shown after the name at the end of the line, such as the last value
  std::string color = "blue";  // blue, orange, green, purple, gray
  Mark mark = Mark::kLine;
  double stroke_width = 0;         // in pixels; 0: as the mark has it
  std::vector<Point> points = {};  // x ascending
  bool labeled = true;
};

struct Chart {
  std::string title = {};  // for screen readers
  std::string x_label = "step";
  std::string y_label = {};  // with its unit
  std::vector<Series> series = {};
  std::vector<Point> top_axis = {};  // step and tokens, ascending; empty: no top axis
  std::string top_label = {};
  bool from_zero = false;  // the y axis starts at 0
  bool stacked = false;    // series are stacked areas, which must have the same x
  bool lists_names = false;  // responsive() lists the names below the chart at every width
  double width = 1000;
  double height = 300;
};

/// Width of a chart for narrow screens: on a screen of 400 pixels, its text keeps about its nominal size.
inline constexpr double kNarrowWidth = 340;

/// The text at the end of a line: its name, and its value if it has one.
std::string label_of(const Series& series);

/// The line as it looks in the chart, in a short <svg> element for lists of names.
std::string line_sample(const Series& series);

/// The chart as one <svg> element, or a sentence if no series has a known value.
std::string draw_chart(const Chart& chart);

}  // namespace orthant

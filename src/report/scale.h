// Numeric helpers for charts: ticks at round values, units, reduction of points, smoothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace orthant {

struct Point {
  double x = 0;
  double y = 0;  // NaN: the line is interrupted here
};

/// At most `most` (>= 2) evenly spaced round values (multiples of 1, 2 or 5 times a power of ten) in [low, high]. Empty
/// unless low < high and both are finite.
std::vector<double> nice_ticks(double low, double high, int most);

/// Formats a tick with the decimals that its spacing needs: "0.25", "1,200".
std::string tick_label(double tick, double spacing);

/// The divisor of an axis's values, and its name.
struct Unit {
  double size = 1;
  std::string name = {};
};
/// The unit that makes the largest value readable: "thousand" from 10,000 on; "KiB"; "ms". Empty name: no divisor.
Unit count_unit(double largest);
Unit byte_unit(double largest);
Unit second_unit(double largest);
/// The power of ten of the largest value, for small numbers without a unit: "1e-3". Empty name for 1 to 10.
Unit power_unit(double largest);
/// The label of an axis: "thousand tokens per second", or "rate, 1e-3" for a power of ten.
std::string in_units(std::string_view what, const Unit& unit);

/// The largest finite y; at least 0.
double largest(std::span<const Point> points);

/// The points with y divided by the unit.
std::vector<Point> in_unit(std::span<const Point> points, const Unit& unit);

/// At most `most` (>= 4) points that look the same: the first, the last, and the lowest and highest of each interval,
/// in order.
std::vector<Point> thin_out(std::span<const Point> points, size_t most);
/// At most `most` points, each the mean of an interval, at the x of its last point.
std::vector<Point> thin_to_means(std::span<const Point> points, size_t most);

/// Number of neighbors on each side that smooth() averages for a line of `steps` points: a sixtieth of them.
size_t smoothing_reach(size_t steps);
/// Replaces each point by the mean of itself and up to `reach` neighbors on each side. Both sides have the same number,
/// so that the result neither lags nor ends early. NaN values are skipped.
std::vector<Point> smooth(std::span<const Point> points, size_t reach);

}  // namespace orthant

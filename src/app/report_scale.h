// The numbers of a picture: ticks at round values, units, fewer points, smoothing.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace orthant {

struct Point {
  double x = 0;
  double y = 0;  // not a number: the line breaks here
};

/// Round values (1, 2 or 5 times a power of ten) inside [low, high], evenly spaced, at most `most` of them (>= 2).
/// Empty unless low < high, both finite.
std::vector<double> nice_ticks(double low, double high, int most);

/// A tick in just the decimals that its spacing needs: "0.25", "1,200".
std::string tick_label(double tick, double spacing);

/// What the values of an axis are divided by, and how that is called.
struct Unit {
  double size = 1;
  std::string name = {};
};
/// The unit in which the largest value is between 1 and 1000 (1024 for bytes): "thousand"; "KiB"; "ms".
Unit count_unit(double largest);
Unit byte_unit(double largest);
Unit second_unit(double largest);

/// The points with values divided by the unit.
std::vector<Point> in_unit(std::span<const Point> points, const Unit& unit);

/// At most `most` points (>= 4) that look the same: the first, the last, and of each stretch its lowest and its
/// highest, in order.
std::vector<Point> thin_out(std::span<const Point> points, size_t most);
/// At most `most` points: each the mean of a stretch, at the x of its last point.
std::vector<Point> thin_to_means(std::span<const Point> points, size_t most);

/// Each point's mean with its neighbors, up to `reach` on both sides and as many on one as on the other, so that the
/// result neither lags nor leaves its ends. Unknown values are left out.
std::vector<Point> smooth(std::span<const Point> points, size_t reach);

}  // namespace orthant

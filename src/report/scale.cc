#include "report/scale.h"

#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>

namespace orthant {

std::vector<double> nice_ticks(double low, double high, int most) {
  if (!(low < high) || !std::isfinite(high - low) || most < 2) return {};
  const double power = std::pow(10.0, std::floor(std::log10((high - low) / most)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0}) {
    const double spacing = factor * power;
    const double first = std::ceil(low / spacing - 1e-9), last = std::floor(high / spacing + 1e-9);
    if (last - first + 1 > most) continue;
    std::vector<double> ticks;
    for (double i = first; i <= last; ++i) ticks.push_back(i == 0 ? 0 : i * spacing);
    return ticks;
  }
  return {};
}

std::string tick_label(double tick, double spacing) {
  if (std::abs(tick) >= 1e9 || (spacing < 1e-5 && spacing > 0)) return fmt::format("{:g}", tick);
  if (spacing >= 1) return grouped(std::llround(tick));
  const int decimals = spacing > 0 ? static_cast<int>(std::ceil(-std::log10(spacing) - 1e-9)) : 3;
  return fmt::format("{:.{}f}", tick, decimals);
}

Unit count_unit(double largest) {
  if (largest >= 1e9) return {1e9, "billion"};
  if (largest >= 1e6) return {1e6, "million"};
  if (largest >= 1e4) return {1e3, "thousand"};
  return {};
}

Unit byte_unit(double largest) {
  constexpr double kKiB = 1024;
  if (largest >= kKiB * kKiB * kKiB) return {kKiB * kKiB * kKiB, "GiB"};
  if (largest >= kKiB * kKiB) return {kKiB * kKiB, "MiB"};
  if (largest >= kKiB) return {kKiB, "KiB"};
  return {1, "bytes"};
}

Unit second_unit(double largest) { return largest >= 1 ? Unit{1, "s"} : Unit{1e-3, "ms"}; }

Unit power_unit(double largest) {
  const double exponent = largest > 0 ? std::floor(std::log10(largest)) : 0;
  return {std::pow(10.0, exponent), exponent == 0 ? "" : fmt::format("1e{:.0f}", exponent)};
}

std::string in_units(std::string_view what, const Unit& unit) {
  if (unit.name.empty()) return std::string(what);
  return unit.name.starts_with("1e") ? fmt::format("{}, {}", what, unit.name) : fmt::format("{} {}", unit.name, what);
}

double largest(std::span<const Point> points) {
  double most = 0;
  for (const auto& point : points) {
    if (std::isfinite(point.y)) most = std::max(most, point.y);
  }
  return most;
}

std::vector<Point> in_unit(std::span<const Point> points, const Unit& unit) {
  std::vector<Point> out;
  out.reserve(points.size());
  for (const auto& point : points) out.push_back({point.x, point.y / unit.size});
  return out;
}

std::vector<Point> thin_out(std::span<const Point> points, size_t most) {
  if (points.size() <= most || most < 4) return {points.begin(), points.end()};
  std::vector<Point> out = {points.front()};
  const auto inner = points.subspan(1, points.size() - 2);
  const size_t stretches = most / 2 - 1;
  for (size_t s = 0; s < stretches; ++s) {
    const size_t begin = inner.size() * s / stretches, end = inner.size() * (s + 1) / stretches;
    const Point *low = nullptr, *high = nullptr;
    for (const auto& point : inner.subspan(begin, end - begin)) {
      if (!std::isfinite(point.y)) continue;
      if (!low || point.y < low->y) low = &point;
      if (!high || point.y >= high->y) high = &point;
    }
    if (low) out.push_back(*std::min(low, high));
    if (low != high) out.push_back(*std::max(low, high));
    if (!low) out.push_back(inner[begin]);  // no finite value: keep a gap
  }
  out.push_back(points.back());
  return out;
}

std::vector<Point> thin_to_means(std::span<const Point> points, size_t most) {
  if (points.size() <= most) return {points.begin(), points.end()};
  std::vector<Point> out;
  for (size_t s = 0; s < most; ++s) {
    const size_t begin = points.size() * s / most, end = points.size() * (s + 1) / most;
    double sum = 0, count = 0;
    for (const auto& point : points.subspan(begin, end - begin)) {
      if (std::isfinite(point.y)) sum += point.y, count += 1;
    }
    out.push_back({points[end - 1].x, count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN()});
  }
  return out;
}

size_t smoothing_reach(size_t steps) { return std::max<size_t>(2, steps / 60); }

std::vector<Point> smooth(std::span<const Point> points, size_t reach) {
  std::vector<Point> known;
  std::copy_if(points.begin(), points.end(), std::back_inserter(known),
               [](const Point& p) { return std::isfinite(p.y); });
  std::vector<double> sums(known.size() + 1);
  for (size_t i = 0; i < known.size(); ++i) sums[i + 1] = sums[i] + known[i].y;
  std::vector<Point> out;
  for (size_t i = 0; i < known.size(); ++i) {
    const size_t sides = std::min({reach, i, known.size() - 1 - i});
    out.push_back({known[i].x, (sums[i + sides + 1] - sums[i - sides]) / static_cast<double>(2 * sides + 1)});
  }
  return out;
}

}  // namespace orthant

#include "report/differences.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "base/text.h"

namespace orthant {

Difference difference_of(std::span<const Point> first, std::span<const Point> other) {
  Difference found;
  for (auto a = first.begin(), b = other.begin(); a != first.end() && b != other.end();) {
    if (a->x != b->x) {
      a->x < b->x ? ++a : ++b;
      continue;
    }
    const auto step = static_cast<int64_t>(a->x);
    ++found.common_steps;
    const bool both_unknown = std::isnan(a->y) && std::isnan(b->y);
    if (!both_unknown && std::bit_cast<uint64_t>(a->y) != std::bit_cast<uint64_t>(b->y)) {
      if (found.unequal_steps++ == 0) found.first_step = step;
      const double absolute = std::abs(a->y - b->y);
      if (absolute > found.largest) {
        found.largest = absolute;
        found.relative = absolute / std::abs(a->y);
        found.largest_step = step;
      }
    }
    ++a, ++b;
  }
  return found;
}

std::string text_of(const Difference& difference) {
  if (difference.common_steps == 0) return "-";
  if (difference.is_equal()) return "equal in every bit";
  const std::string from = fmt::format("unequal from step {}", grouped(difference.first_step));
  if (difference.largest == 0) return from;  // values that only one run knows, or zeros of different signs
  return fmt::format("{:.2g} at step {}; relative {:.2g}, {}", difference.largest, grouped(difference.largest_step),
                     difference.relative, from);
}

}  // namespace orthant
